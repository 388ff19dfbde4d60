//! The body of a list in JSON: no panic, and the same result in any pieces.
//!
//! The first byte chooses the kind, the next two the sizes of the pieces. Most of what a fuzzer writes is no list, so
//! that the bytes are also tried as the items of one.
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
