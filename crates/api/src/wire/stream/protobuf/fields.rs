//! Protobuf's wire format: splits a message into its fields, borrowed from its bytes.

use std::borrow::Cow;
use std::cell::Cell;

use super::super::super::scalar::{Flag, Int, Text};
use super::super::object::TOO_MANY_PARTS;

/// Why a message can't be read.
pub(super) type Damage = &'static str;

/// A message that is filled field by field. Fields read before an error stay; a repeated field replaces the one before, or is
/// merged with it if it is a message, as protobuf requires.
pub(super) trait Message<'a>: Default {
    /// Takes one field, or leaves it if it isn't known.
    fn field(&mut self, number: u32, value: FieldValue<'a, '_>) -> Result<(), Damage>;
}

/// The value of one field.
#[derive(Clone, Copy)]
pub(super) struct FieldValue<'a, 'p> {
    wire: Wire<'a>,
    /// list entries that this object may still have ([`MAX_PARTS`](super::super::object::MAX_PARTS))
    parts: &'p Cell<u32>,
}

/// A value as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// 4 or 8 bytes, which no field that we read has
    Fixed,
}

/// A field's tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    pub(super) number: u32,
    pub(super) wire_type: WireType,
}

/// Wire type of a field. Groups aren't decoded: the API has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireType {
    Varint,
    Fixed64,
    Bytes,
    Fixed32,
}

/// A number that is put together from its bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Varint {
    value: u64,
    bytes: u32,
}

const ENDS_EARLY: Damage = "a field ends beyond its message";
const OTHER_TYPE: Damage = "a field has another type";

/// Reads the fields of a message into it.
pub(super) fn merge<'a, M: Message<'a>>(message: &mut M, mut bytes: &'a [u8], parts: &Cell<u32>) -> Result<(), Damage> {
    while !bytes.is_empty() {
        let (number, wire) = field(&mut bytes)?;
        message.field(number, FieldValue { wire, parts })?;
    }
    Ok(())
}

/// Takes one field.
pub(super) fn field<'a>(bytes: &mut &'a [u8]) -> Result<(u32, Wire<'a>), Damage> {
    let key = Tag::of(varint(bytes)?)?;
    let wire = match key.wire_type {
        WireType::Varint => Wire::Varint(varint(bytes)?),
        WireType::Bytes => {
            let length = usize::try_from(varint(bytes)?).map_err(|_| ENDS_EARLY)?;
            Wire::Bytes(take(bytes, length)?)
        }
        WireType::Fixed64 => take(bytes, 8).map(|_| Wire::Fixed)?,
        WireType::Fixed32 => take(bytes, 4).map(|_| Wire::Fixed)?,
    };
    Ok((key.number, wire))
}

pub(super) fn text(bytes: &[u8]) -> Result<Text<'_>, Damage> {
    let text = str::from_utf8(bytes).map_err(|_| "a text isn't UTF-8")?;
    Ok(Text(Cow::Borrowed(text)))
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], Damage> {
    let (taken, rest) = bytes.split_at_checked(length).ok_or(ENDS_EARLY)?;
    *bytes = rest;
    Ok(taken)
}

fn varint(bytes: &mut &[u8]) -> Result<u64, Damage> {
    let mut number = Varint::default();
    loop {
        let (&byte, rest) = bytes.split_first().ok_or(ENDS_EARLY)?;
        *bytes = rest;
        if let Some(value) = number.push(byte)? {
            return Ok(value);
        }
    }
}

// === impl FieldValue ===

impl<'a> FieldValue<'a, '_> {
    pub(super) fn bytes(self) -> Result<&'a [u8], Damage> {
        match self.wire {
            Wire::Bytes(bytes) => Ok(bytes),
            Wire::Varint(_) | Wire::Fixed => Err(OTHER_TYPE),
        }
    }

    pub(super) fn text(self) -> Result<Text<'a>, Damage> {
        text(self.bytes()?)
    }

    /// An int32 or int64: a negative one is written as 64 bits in both cases.
    pub(super) fn int64(self) -> Result<i64, Damage> {
        match self.wire {
            Wire::Varint(value) => Ok(value.cast_signed()),
            Wire::Bytes(_) | Wire::Fixed => Err(OTHER_TYPE),
        }
    }

    pub(super) fn set_text(self, field: &mut Option<Text<'a>>) -> Result<(), Damage> {
        *field = Some(self.text()?);
        Ok(())
    }

    pub(super) fn set_bytes(self, field: &mut &'a [u8]) -> Result<(), Damage> {
        *field = self.bytes()?;
        Ok(())
    }

    /// Sets an int32: the upper half is cut off, as everybody does.
    pub(super) fn set_int(self, field: &mut Option<Int>) -> Result<(), Damage> {
        *field = Some(Int(i64::from(self.int64()? as i32)));
        Ok(())
    }

    pub(super) fn set_flag(self, field: &mut Option<Flag>) -> Result<(), Damage> {
        *field = Some(Flag(self.int64()? != 0));
        Ok(())
    }

    /// A field that isn't read.
    #[expect(clippy::unnecessary_wraps, reason = "it stands where the others can fail")]
    pub(super) fn ignored(self) -> Result<(), Damage> {
        Ok(())
    }

    /// Reads a message into a field, which is there from now on, however empty the message is.
    pub(super) fn merge<M: Message<'a>>(self, field: &mut Option<M>) -> Result<(), Damage> {
        merge(field.get_or_insert_default(), self.bytes()?, self.parts)
    }

    /// Reads a message that isn't kept.
    pub(super) fn message<M: Message<'a>>(self) -> Result<M, Damage> {
        let mut message = M::default();
        merge(&mut message, self.bytes()?, self.parts).map(|()| message)
    }

    /// Adds a message to a list.
    pub(super) fn push<M: Message<'a>>(self, list: &mut Option<Vec<M>>) -> Result<(), Damage> {
        self.count()?;
        let message = self.message()?;
        list.get_or_insert_default().push(message);
        Ok(())
    }

    /// Adds a text to a list.
    pub(super) fn push_text(self, list: &mut Option<Vec<Text<'a>>>) -> Result<(), Damage> {
        self.count()?;
        list.get_or_insert_default().push(self.text()?);
        Ok(())
    }

    fn count(self) -> Result<(), Damage> {
        self.parts.set(self.parts.get().checked_sub(1).ok_or(TOO_MANY_PARTS)?);
        Ok(())
    }
}

// === impl Tag ===

impl Tag {
    pub(super) fn of(varint: u64) -> Result<Self, Damage> {
        let number = u32::try_from(varint >> 3).ok().filter(|number| (1..1 << 29).contains(number));
        let wire_type = match varint & 7 {
            0 => WireType::Varint,
            1 => WireType::Fixed64,
            2 => WireType::Bytes,
            5 => WireType::Fixed32,
            _ => return Err("a field of an unknown wire type"),
        };
        Ok(Self { number: number.ok_or("a field with an impossible number")?, wire_type })
    }
}

// === impl Varint ===

impl Varint {
    /// Adds a byte; gives the number when that was its last.
    pub(super) fn push(&mut self, byte: u8) -> Result<Option<u64>, Damage> {
        // Nine bytes hold 63 bits.
        if self.bytes == 9 && byte > 1 {
            return Err("a number of more than 64 bits");
        }
        self.value |= u64::from(byte & 0x7f) << (7 * self.bytes);
        self.bytes += 1;
        Ok((byte < 0x80).then_some(self.value))
    }

    pub(super) fn is_begun(self) -> bool {
        self.bytes > 0
    }
}
