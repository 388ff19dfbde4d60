//! Fuzzes the decoder of a list in JSON: no panic, and the same result for any split into pieces.
//!
//! The first byte selects the kind, the next two the sizes of the pieces. Most inputs are no list, so the bytes are also
//! tried as the items of one.
#![no_main]

use ferry_api::wire::stream::Encoding;
use libfuzzer_sys::fuzz_target;

#[path = "common/input.rs"]
mod input;
#[path = "common/list.rs"]
mod list;

use input::Input;
use list::list;

fuzz_target!(|bytes: &[u8]| {
    let Some((input, _)) = Input::of(bytes) else { return };
    list(input, Encoding::Json, input.body);
    let body = [b"{\"items\":[", input.body, b"]}"].concat();
    list(input, Encoding::Json, &body);
});
