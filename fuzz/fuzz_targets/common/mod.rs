//! What the targets for the answers of API servers share.

use ferry_api::object::Kind;
use ferry_api::wire::stream::{Encoding, ListDecoder};

/// An input: one byte for the kind and more, two for the sizes of the pieces, the body.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    pub kind: Kind,
    /// the upper bits of the first byte
    #[allow(dead_code, reason = "not every target has something to choose")]
    pub choice: u8,
    sizes: [u8; 2],
    pub body: &'a [u8],
}

impl<'a> Input<'a> {
    pub fn of(bytes: &'a [u8]) -> Option<Self> {
        let (&[choice, first, second], body) = bytes.split_first_chunk()?;
        let kind = [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr][usize::from(choice % 4)];
        Some(Self { kind, choice: choice / 4, sizes: [first, second], body })
    }

    /// Cuts a body into pieces of 1 to 256 bytes, of two sizes in turn.
    pub fn pieces(self, mut body: &[u8]) -> Vec<&[u8]> {
        let mut pieces = Vec::new();
        for size in self.sizes.into_iter().cycle() {
            if body.is_empty() {
                break;
            }
            let (piece, rest) = body.split_at(body.len().min(usize::from(size) + 1));
            pieces.push(piece);
            body = rest;
        }
        pieces
    }
}

/// Reads a list whole and in pieces, and says how many items it has.
#[allow(dead_code, reason = "not every target reads lists")]
pub fn list(input: Input<'_>, encoding: Encoding, body: &[u8]) -> usize {
    let read = |pieces: &[&[u8]]| {
        let (mut decoder, mut items) = (ListDecoder::new(input.kind, encoding), Vec::new());
        let pushed = pieces.iter().try_for_each(|piece| decoder.push(piece, &mut items));
        let end = decoder.finish();
        assert!(pushed.is_ok() || end.is_err());
        (items, end)
    };
    let whole = read(&[body]);
    assert_eq!(whole, read(&input.pieces(body)));
    whole.0.len()
}

/// A field of protobuf with bytes.
#[allow(dead_code, reason = "not every target writes protobuf")]
pub fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    let mut length = content.len();
    while length >= 0x80 {
        bytes.push(length as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes.extend(content);
    bytes
}
