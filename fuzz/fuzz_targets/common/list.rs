//! Decodes a list, whole and in pieces.

use ferry_api::wire::stream::{Encoding, ListDecoder};

use crate::input::Input;

/// Decodes a list whole and in pieces, checks that both agree, and returns the number of items.
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
