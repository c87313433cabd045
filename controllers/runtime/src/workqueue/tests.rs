//! Properties of the queue, on tokio's paused clock.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::time::{advance, timeout};
use tokio_util::sync::CancellationToken;

const SHORT: Duration = Duration::from_millis(1);

async fn nothing_ready(queue: &WorkQueue<&'static str>) -> bool {
    timeout(SHORT, queue.next()).await.is_err()
}

#[tokio::test(start_paused = true)]
async fn a_key_added_many_times_is_taken_once_in_order_of_first_add() {
    let queue = WorkQueue::new("t");
    for key in ["b", "a", "b", "c", "a"] {
        queue.add(key);
    }
    assert_eq!(queue.stats().depth, 3);
    assert_eq!(queue.stats().adds, 3);
    for expected in ["b", "a", "c"] {
        assert_eq!(*queue.next().await.unwrap(), expected);
    }
    assert!(nothing_ready(&queue).await);
}

#[tokio::test(start_paused = true)]
async fn a_key_added_while_worked_on_runs_again_afterwards_and_not_before() {
    let queue = WorkQueue::new("t");
    queue.add("a");
    let first = queue.next().await.unwrap();
    queue.add("a");
    queue.add("a");
    assert!(nothing_ready(&queue).await);
    drop(first);
    let second = queue.next().await.unwrap();
    drop(second);
    assert!(nothing_ready(&queue).await);
}

#[tokio::test(start_paused = true)]
async fn of_several_delays_the_shortest_counts_and_an_add_does_not_wait() {
    let queue = WorkQueue::new("t");
    queue.add_after("a", Duration::from_secs(9));
    queue.add_after("a", Duration::from_secs(3));
    queue.add_after("a", Duration::from_secs(5));
    assert_eq!(queue.stats().delayed, 1);
    queue.add("a");
    drop(queue.next().await.unwrap());
    let start = Instant::now();
    drop(queue.next().await.unwrap());
    assert_eq!(start.elapsed().as_secs(), 3);
    assert!(timeout(Duration::from_secs(60), queue.next()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_failing_key_backs_off_alone_and_a_success_resets_it() {
    let queue = WorkQueue::new("t");
    let mut delays = Vec::new();
    for _ in 0..6 {
        let start = Instant::now();
        queue.retry("a");
        drop(queue.next().await.unwrap());
        delays.push(start.elapsed().as_secs());
    }
    assert_eq!(delays, [1, 2, 4, 8, 10, 10]);
    queue.retry("b");
    let start = Instant::now();
    assert_eq!(*queue.next().await.unwrap(), "b");
    assert_eq!(start.elapsed().as_secs(), 1);
    queue.forget(&"a");
    let start = Instant::now();
    queue.retry("a");
    drop(queue.next().await.unwrap());
    assert_eq!(start.elapsed().as_secs(), 1);
    assert_eq!(queue.stats().retries, 8);
}

#[tokio::test(start_paused = true)]
async fn one_wake_up_reaches_as_many_waiters_as_there_are_keys() {
    let queue: WorkQueue<u32> = WorkQueue::new("t");
    let taken = Arc::new(AtomicUsize::new(0));
    let mut waiters = Vec::new();
    for _ in 0..8 {
        let (queue, taken) = (queue.clone(), taken.clone());
        waiters.push(tokio::spawn(async move {
            let key = queue.next().await;
            taken.fetch_add(1, Ordering::SeqCst);
            futures::future::pending::<()>().await;
            drop(key);
        }));
    }
    tokio::task::yield_now().await;
    for key in 0..8 {
        queue.add(key);
    }
    tokio::time::sleep(SHORT).await;
    assert_eq!(taken.load(Ordering::SeqCst), 8);
    for waiter in waiters {
        waiter.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn workers_run_at_most_n_at_once_and_never_one_key_twice() {
    let queue: WorkQueue<usize> = WorkQueue::new("t");
    let stop = CancellationToken::new();
    let running: Vec<AtomicUsize> = (0..10).map(|_| AtomicUsize::new(0)).collect();
    let (now, most, runs) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let work = async |key: usize| {
        assert_eq!(running[key].fetch_add(1, Ordering::SeqCst), 0);
        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(7)).await;
        now.fetch_sub(1, Ordering::SeqCst);
        running[key].fetch_sub(1, Ordering::SeqCst);
        runs.fetch_add(1, Ordering::SeqCst);
        Next::Done
    };
    let feed = async {
        for n in 0..1_000 {
            queue.add(n % 10);
            tokio::time::sleep(SHORT).await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        stop.cancel();
    };
    tokio::join!(run_workers(&queue, 4, stop.clone(), work), feed);
    assert_eq!(most.load(Ordering::SeqCst), 4);
    assert!(runs.load(Ordering::SeqCst) > 100);
    assert_eq!(queue.stats().depth + queue.stats().processing, 0);
}

#[tokio::test(start_paused = true)]
async fn shutdown_finishes_what_runs_and_begins_nothing() {
    let queue: WorkQueue<u32> = WorkQueue::new("t");
    let stop = CancellationToken::new();
    let finished = AtomicUsize::new(0);
    let work = async |_| {
        tokio::time::sleep(Duration::from_secs(2)).await;
        finished.fetch_add(1, Ordering::SeqCst);
        Next::Done
    };
    for key in 0..5 {
        queue.add(key);
    }
    let stopper = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        stop.cancel();
    };
    let start = Instant::now();
    tokio::join!(run_workers(&queue, 2, stop.clone(), work), stopper);
    assert_eq!((finished.load(Ordering::SeqCst), start.elapsed().as_secs()), (2, 2));
    queue.add(9);
    assert_eq!(queue.stats().depth, 3);
    assert!(queue.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failure_of_that_key_alone() {
    let queue: WorkQueue<u32> = WorkQueue::new("t");
    let stop = CancellationToken::new();
    let tries = AtomicUsize::new(0);
    let work = async |key| {
        if key == 0 && tries.fetch_add(1, Ordering::SeqCst) == 0 {
            panic!("once");
        }
        Next::Done
    };
    queue.add(0);
    queue.add(1);
    let stopper = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        stop.cancel();
    };
    tokio::join!(run_workers(&queue, 1, stop.clone(), work), stopper);
    assert_eq!(tries.load(Ordering::SeqCst), 2);
    assert_eq!(queue.stats().processing, 0);
}

#[tokio::test(start_paused = true)]
async fn stats_tell_unfinished_and_longest_running() {
    let queue = WorkQueue::new("t");
    queue.add("a");
    let _a = queue.next().await;
    advance(Duration::from_secs(3)).await;
    queue.add("b");
    let _b = queue.next().await;
    advance(Duration::from_secs(2)).await;
    let stats = queue.stats();
    assert_eq!((stats.processing, stats.unfinished.as_secs(), stats.longest_running.as_secs()), (2, 7, 5));
}
