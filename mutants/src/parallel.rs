//! Work on a list by one thread for each processor.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

/// Calls a function for each item, with the number of the calling thread; the results come in no order.
pub(crate) fn map<T: Sync, R: Send>(items: &[T], work: impl Fn(usize, &T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(items.len()));
    let (next, work, results) = (&next, &work, &results);
    thread::scope(|scope| {
        for worker in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(move || {
                while let Some(item) = items.get(next.fetch_add(1, Relaxed)) {
                    let result = work(worker, item);
                    results.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(result);
                }
            });
        }
    });
    std::mem::take(&mut *results.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_item_is_worked_on_once() {
        let items: Vec<u32> = (0..1000).collect();
        let mut results = map(&items, |_, item| item * 2);
        results.sort_unstable();
        assert_eq!(results, (0..1000).map(|item| item * 2).collect::<Vec<_>>());
    }
}
