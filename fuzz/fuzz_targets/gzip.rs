//! Fuzzes the decompression of response bodies: chunks are bounded and never empty, the content doesn't depend on how it arrives, and
//! what another library has compressed is decompressed to the same bytes.
//!
//! The first byte is the size of the pieces that arrive, the second the level of compression and the number of members.
#![no_main]

use std::io::{Read as _, Write as _};

use ferry_client::Gunzip;
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use libfuzzer_sys::fuzz_target;

/// The longest content that is compared: a small input may expand to a thousand times as much.
const MAX_COMPARED_BYTES: usize = 4 << 20;

fuzz_target!(|bytes: &[u8]| {
    let Some((&[size, choice], body)) = bytes.split_first_chunk() else { return };
    let piece = usize::from(size) + 1;
    check(body, piece);

    let level = Compression::new(u32::from(choice % 10));
    let members = usize::from(choice / 10 % 4) + 1;
    let packed: Vec<u8> =
        body.chunks(body.len().div_ceil(members).max(1)).flat_map(|content| compress(content, level)).collect();
    let (content, is_complete) = check(&packed, piece);
    // No member at all is no gzip.
    assert_eq!(is_complete, !body.is_empty());
    assert!(content == body, "another content");
});

/// Decompresses a body at once and in pieces, checks that both agree, and returns the content, and true if it is complete.
fn check(packed: &[u8], piece: usize) -> (Vec<u8>, bool) {
    let whole = decompress(packed, packed.len().max(1));
    let (content, is_complete) = decompress(packed, piece);
    assert_eq!(whole.1, is_complete);
    // Before an error, the last piece is lost.
    let common = whole.0.len().min(content.len());
    assert!(whole.0[..common] == content[..common], "another content in pieces of {piece} bytes");
    assert!(!is_complete || whole.0.len() == content.len(), "another length in pieces of {piece} bytes");
    if is_complete && content.len() <= MAX_COMPARED_BYTES {
        let mut expected = Vec::new();
        MultiGzDecoder::new(packed).read_to_end(&mut expected).expect("the other decoder accepts it, too");
        assert!(content == expected, "another content than the other decoder's");
    }
    (content, is_complete)
}

fn decompress(packed: &[u8], piece: usize) -> (Vec<u8>, bool) {
    let (mut gunzip, mut content) = (Gunzip::new(), Vec::new());
    for piece in packed.chunks(piece) {
        gunzip.push(piece.to_vec().into());
        loop {
            match gunzip.chunk() {
                Ok(Some(chunk)) => add(&mut content, &chunk),
                Ok(None) => break,
                Err(_) => return (content, false),
            }
        }
    }
    match gunzip.finish() {
        Ok(last) => {
            last.iter().for_each(|chunk| add(&mut content, chunk));
            (content, true)
        }
        Err(_) => (content, false),
    }
}

fn add(content: &mut Vec<u8>, chunk: &[u8]) {
    assert!(!chunk.is_empty() && chunk.len() <= Gunzip::MAX_CHUNK_BYTES, "{} bytes", chunk.len());
    content.extend(chunk);
}

fn compress(content: &[u8], level: Compression) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), level);
    encoder.write_all(content).expect("a Vec takes everything");
    encoder.finish().expect("a Vec takes everything")
}
