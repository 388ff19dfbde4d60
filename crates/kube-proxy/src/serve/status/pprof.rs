//! The format of profiles that `go tool pprof` reads: a compressed message of protocol buffers (`profile.proto` of
//! github.com/google/pprof; the numbers below are its fields).
//!
//! Addresses are not resolved to names here: the shipped executable has none. The tool takes them from an executable with symbols
//! that it is given.

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::time::{Duration, SystemTime};

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message as _;

use crate::platform::{self, Samples};

/// A profile that was taken.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) samples: Samples,
    /// when it began
    pub(super) time: SystemTime,
    /// the time that it took
    pub(super) length: Duration,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ProfileMessage {
    #[prost(message, repeated, tag = "1")]
    sample_types: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mappings: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    locations: Vec<Location>,
    #[prost(string, repeated, tag = "6")]
    strings: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanoseconds: i64,
    #[prost(int64, tag = "10")]
    length_nanoseconds: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
    /// indices of strings
    #[prost(int64, repeated, tag = "13")]
    comments: Vec<i64>,
}

/// Names of a value and its unit, as indices of strings.
#[derive(Clone, PartialEq, prost::Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    name: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    locations: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    values: Vec<i64>,
}

/// Code of a file in memory.
#[derive(Clone, PartialEq, prost::Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    number: u64,
    #[prost(uint64, tag = "2")]
    start: u64,
    #[prost(uint64, tag = "3")]
    end: u64,
    #[prost(uint64, tag = "4")]
    offset: u64,
    #[prost(int64, tag = "5")]
    file: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    number: u64,
    #[prost(uint64, tag = "2")]
    mapping: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
}

/// The strings of every profile, by their indices; the first one is empty.
const STRINGS: [&str; 5] = ["", "samples", "count", "cpu", "nanoseconds"];
const SAMPLES: ValueType = ValueType { name: 1, unit: 2 };
const PROCESSOR_TIME: ValueType = ValueType { name: 3, unit: 4 };

/// Encodes a profile of this process.
///
/// # Errors
/// If the parts of files in memory can't be read.
pub(super) fn encode(taken: &Taken) -> io::Result<Vec<u8>> {
    let maps = platform::memory_maps()?;
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&profile(taken, &maps).encode_to_vec())?;
    encoder.finish()
}

fn profile(taken: &Taken, maps: &str) -> ProfileMessage {
    let Samples { stacks, lost, period } = &taken.samples;
    let mut strings: Vec<String> = STRINGS.map(str::to_owned).into();
    let mappings = mappings(maps, &mut strings);
    let comments = (*lost > 0).then(|| index(&mut strings, format!("{lost} samples didn't fit")));
    let period = signed(period.as_nanos());
    let mut locations = Locations { mappings: &mappings, numbers: HashMap::new(), all: Vec::new() };
    let mut counts: HashMap<&[u64], i64> = HashMap::new();
    for stack in stacks {
        *counts.entry(stack).or_default() += 1;
    }
    let sample = |(stack, count): (&[u64], i64)| Sample {
        locations: stack.iter().map(|address| locations.number(*address)).collect(),
        values: vec![count, count.saturating_mul(period)],
    };
    let samples = counts.into_iter().map(sample).collect();
    ProfileMessage {
        sample_types: vec![SAMPLES, PROCESSOR_TIME],
        samples,
        locations: locations.all,
        mappings,
        strings,
        time_nanoseconds: signed(taken.time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos()),
        length_nanoseconds: signed(taken.length.as_nanos()),
        period_type: Some(PROCESSOR_TIME),
        period,
        comments: comments.into_iter().collect(),
    }
}

/// The locations of a profile, each once.
struct Locations<'a> {
    mappings: &'a [Mapping],
    numbers: HashMap<u64, u64>,
    all: Vec<Location>,
}

// === impl Locations ===

impl Locations<'_> {
    fn number(&mut self, address: u64) -> u64 {
        *self.numbers.entry(address).or_insert_with(|| {
            let has = |mapping: &&Mapping| (mapping.start..mapping.end).contains(&address);
            let mapping = self.mappings.iter().find(has).map_or(0, |mapping| mapping.number);
            let number = self.all.len() as u64 + 1;
            self.all.push(Location { number, mapping, address });
            number
        })
    }
}

/// The executable parts of files, from the text of `/proc/PID/maps` (`proc(5)`). The first is that of the program: the tool takes it for
/// the main one.
fn mappings(maps: &str, strings: &mut Vec<String>) -> Vec<Mapping> {
    let parsed = |line: &str| {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let is_executable = fields.next()?.contains('x');
        let offset = fields.next()?;
        let file = fields.nth(2)?.trim().to_owned();
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        (is_executable && !file.is_empty()).then_some((number(start)?, number(end)?, number(offset)?, file))
    };
    let mapping = |(row, (start, end, offset, file))| Mapping {
        number: row as u64 + 1,
        start,
        end,
        offset,
        file: index(strings, file),
    };
    maps.lines().filter_map(parsed).enumerate().map(mapping).collect()
}

/// Adds a string; returns its index.
fn index(strings: &mut Vec<String>, text: String) -> i64 {
    strings.push(text);
    i64::try_from(strings.len() - 1).unwrap_or_default()
}

fn signed(number: u128) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0c0000000-55d0c0010000 r--p 00000000 fe:00 12 /usr/bin/kube-proxy
55d0c0010000-55d0c0020000 r-xp 00010000 fe:00 12                         /usr/bin/kube-proxy
55d0c1000000-55d0c1010000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000001000 r-xp 00028000 fe:00 9                          /usr/lib/a file.so
7ffc00000000-7ffc00001000 r-xp 00000000 00:00 0                          [vdso]
";

    #[test]
    fn samples_are_counted_by_stack_and_placed_in_files() {
        let stacks =
            vec![vec![0x55d0_c001_0010, 0x7f00_0000_0008], vec![0x10], vec![0x55d0_c001_0010, 0x7f00_0000_0008]];
        let samples = Samples { stacks, lost: 3, period: Duration::from_millis(10) };
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(5);
        let mut profile = profile(&Taken { samples, time, length: Duration::from_secs(1) }, MAPS);
        profile.samples.sort_by_key(|sample| sample.values[0]);
        let text = |index: i64| &*profile.strings[usize::try_from(index).unwrap()];
        let files: Vec<_> = profile.mappings.iter().map(|mapping| (text(mapping.file), mapping.offset)).collect();
        assert_eq!(files, [("/usr/bin/kube-proxy", 0x10000), ("/usr/lib/a file.so", 0x28000), ("[vdso]", 0)]);
        let places = |sample: &Sample| {
            let location = |number: &u64| profile.locations.iter().find(|location| location.number == *number).unwrap();
            sample
                .locations
                .iter()
                .map(location)
                .map(|location| (location.mapping, location.address))
                .collect::<Vec<_>>()
        };
        let found: Vec<_> = profile.samples.iter().map(|sample| (places(sample), sample.values.clone())).collect();
        let twice = vec![(1, 0x55d0_c001_0010), (2, 0x7f00_0000_0008)];
        assert_eq!(found, [(vec![(0, 0x10)], vec![1, 10_000_000]), (twice, vec![2, 20_000_000])]);
        assert_eq!(text(profile.comments[0]), "3 samples didn't fit");
        assert_eq!((profile.time_nanoseconds, profile.length_nanoseconds), (5_000_000_000, 1_000_000_000));
        assert_eq!((text(profile.sample_types[1].name), text(profile.sample_types[1].unit)), ("cpu", "nanoseconds"));
        assert_eq!(text(0), "");
    }
}
