//! Splits the input of the targets that decode API server responses.

use ferry_api::object::Kind;

/// An input: one byte for the kind and flags, two for the sizes of the pieces, and the body.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    pub kind: Kind,
    sizes: [u8; 2],
    pub body: &'a [u8],
}

impl<'a> Input<'a> {
    /// Splits the bytes; returns the input, and the upper bits of its first byte.
    pub fn of(bytes: &'a [u8]) -> Option<(Self, u8)> {
        let (&[choice, first, second], body) = bytes.split_first_chunk()?;
        let kind = [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr][usize::from(choice % 4)];
        Some((Self { kind, sizes: [first, second], body }, choice / 4))
    }

    /// Cuts a body into pieces of 1 to 256 bytes, with two sizes in turn.
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
