//! Reading a list.

use ferry_api::wire::stream::{Encoding, ListDecoder};

use crate::input::Input;

/// Reads a list whole and in pieces, and says how many items it has.
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
