//! Code of each kind that mutants change; prints what it computes.

#[derive(Clone, Debug, PartialEq)]
struct LabelledNumber {
    left: u32,
    right: String,
}

fn all(a: bool, b: bool, c: bool) -> bool {
    a && b && !c
}

fn any(a: &str, b: &str) -> bool {
    a.is_empty() || b == "x"
}

fn compared(a: usize, b: usize) -> (bool, bool) {
    (a < b, a.pow(2) >= b * 2 + 1)
}

fn summed(numbers: &[u32]) -> u32 {
    let mut sum = 1;
    for number in numbers {
        sum += number << 1;
    }
    sum
}

fn matched(value: Option<u32>) -> &'static str {
    match value {
        Some(number) if number > 5 && number != 9 => "large",
        Some(0) => "zero",
        None => "none",
        _ => "small",
    }
}

fn changed(pair: LabelledNumber) -> LabelledNumber {
    LabelledNumber { left: pair.left - 1, ..pair.clone() }
}

fn named(pair: LabelledNumber) -> LabelledNumber {
    LabelledNumber { right: "other".into(), ..pair.clone() }
}

fn evens(limit: u32) -> impl Iterator<Item = u32> {
    (0..limit).filter(|number| number % 2 == 0)
}

const fn doubled(number: u32) -> u32 {
    number * 2
}

fn chained(value: Option<u32>, flag: bool) -> u32 {
    if let Some(number) = value
        && flag
    {
        number
    } else {
        0
    }
}

fn main() {
    for bits in 0..8 {
        println!("{}", all(bits & 1 == 1, bits & 2 == 2, bits & 4 == 4));
    }
    for (a, b) in [("", "x"), ("", "y"), ("a", "x"), ("a", "y")] {
        println!("{}", any(a, b));
    }
    for (a, b) in [(1, 2), (2, 1), (2, 2), (3, 4), (3, 5)] {
        println!("{:?}", compared(a, b));
    }
    println!("{} {}", summed(&[1, 2, 3]), summed(&[]));
    for value in [None, Some(0), Some(3), Some(7), Some(9)] {
        println!("{} {}", matched(value), chained(value, true));
    }
    let pair = LabelledNumber { left: 3, right: "right".into() };
    println!("{:?} {:?}", changed(pair.clone()), named(pair));
    println!("{:?} {}", evens(7).collect::<Vec<_>>(), doubled(4));
}
