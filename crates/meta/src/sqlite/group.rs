//! Group commit: changes that wait for the database at the same time share one transaction and one sync of the disk.
//!
//! Each change runs in a savepoint of its own, so an error undoes only that change. All are answered after the commit.
//! No change waits for later ones: the caller that gets the connection commits everything queued by then.

use crate::{MetaError, Result};
use rusqlite::{Connection, Transaction, TransactionBehavior};
use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use tokio::sync::oneshot;

/// The answer to a queued change.
pub(super) type Pending<T> = oneshot::Receiver<Result<T>>;

/// The most changes in one transaction; it bounds the wait of the first.
const GROUP_MAX: usize = 64;

/// The writing connection and the changes that wait for it.
pub(super) struct Writer {
    connection: Mutex<Connection>,
    waiting: Mutex<VecDeque<Box<dyn Change>>>,
    /// Committed changes that changed a row; the others write nothing and wait for no disk.
    commits: AtomicU64,
}

/// A queued change, with any type of result.
trait Change: Send {
    /// Makes the change in a transaction. Returns whether to keep it.
    fn make(&mut self, tx: &Transaction<'_>) -> bool;
    /// Answers after the transaction has been committed or has failed.
    fn answer(self: Box<Self>, committed: Result<()>);
}

struct Waiting<T, F> {
    change: Option<F>,
    made: Option<Result<T>>,
    reply: oneshot::Sender<Result<T>>,
}

impl Writer {
    pub(super) fn new(connection: Connection) -> Self {
        Self { connection: Mutex::new(connection), waiting: Mutex::default(), commits: AtomicU64::new(0) }
    }

    /// Queues a change for the next [`commit_waiting`](Self::commit_waiting).
    pub(super) fn enqueue<T, F>(&self, change: F) -> Pending<T>
    where
        T: Send + 'static,
        F: FnOnce(&Transaction<'_>) -> Result<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        self.waiting().push_back(Box::new(Waiting { change: Some(change), made: None, reply }));
        answer
    }

    /// Makes at most [`GROUP_MAX`] queued changes, unless another caller makes them first. One call after each
    /// [`enqueue`](Self::enqueue) suffices for all changes to be made.
    pub(super) fn commit_waiting(&self) {
        // A change that panicked left no transaction open: its drop rolled the transaction back.
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let mut group: Vec<Box<dyn Change>> = {
            let mut waiting = self.waiting();
            let count = waiting.len().min(GROUP_MAX);
            waiting.drain(..count).collect()
        };
        if group.is_empty() {
            return;
        }
        let committed = commit(&mut connection, &mut group);
        drop(connection);
        self.commits.fetch_add(*committed.as_ref().unwrap_or(&0), Relaxed);
        let committed = committed.map(drop);
        group.into_iter().for_each(|change| change.answer(committed.clone()));
    }

    /// Uses the connection outside of any transaction of [`commit_waiting`](Self::commit_waiting).
    pub(super) fn with_connection<T>(&self, work: impl FnOnce(&Connection) -> T) -> T {
        work(&self.connection.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The number of committed changes that changed something.
    pub(super) fn commits(&self) -> u64 {
        self.commits.load(Relaxed)
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Box<dyn Change>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes all changes of a group in one transaction. Returns how many of them changed something. An error concerns the
/// whole transaction: none of its changes happened.
fn commit(connection: &mut Connection, group: &mut [Box<dyn Change>]) -> Result<u64> {
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut commits = 0;
    for change in group {
        let rows_before = tx.total_changes();
        tx.prepare_cached("SAVEPOINT change")?.execute(())?;
        // Some errors make SQLite roll back the whole transaction. The savepoint is then gone, and this statement
        // fails.
        let keep = change.make(&tx);
        commits += u64::from(keep && tx.total_changes() > rows_before);
        if !keep {
            tx.prepare_cached("ROLLBACK TO change")?.execute(())?;
        }
        tx.prepare_cached("RELEASE change")?.execute(())?;
    }
    tx.commit()?;
    Ok(commits)
}

impl<T, F> Change for Waiting<T, F>
where
    T: Send,
    F: FnOnce(&Transaction<'_>) -> Result<T> + Send,
{
    fn make(&mut self, tx: &Transaction<'_>) -> bool {
        self.made = self.change.take().map(|change| change(tx));
        matches!(self.made, Some(Ok(_)))
    }

    fn answer(self: Box<Self>, committed: Result<()>) {
        let unmade = || Err(MetaError::Storage("internal error: a change was not executed".into()));
        let made = self.made.unwrap_or_else(unmade);
        // The caller may have stopped waiting; the change is committed anyway.
        let _stopped = self.reply.send(committed.and(made));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(dir: &tempfile::TempDir) -> Writer {
        let connection = Connection::open(dir.path().join("db")).unwrap();
        connection.execute_batch("CREATE TABLE t (x INTEGER PRIMARY KEY)").unwrap();
        Writer::new(connection)
    }

    fn insert(writer: &Writer, x: i64) -> Pending<()> {
        writer.enqueue(move |tx| {
            tx.execute("INSERT INTO t VALUES (?1)", [x])?;
            if x < 0 { Err(MetaError::Refused(format!("{x} is negative"))) } else { Ok(()) }
        })
    }

    fn rows(writer: &Writer) -> Vec<i64> {
        let connection = writer.connection.lock().unwrap();
        let mut statement = connection.prepare("SELECT x FROM t ORDER BY x").unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }

    #[test]
    fn waiting_changes_are_committed_together_and_an_error_undoes_only_one() {
        let dir = tempfile::tempdir().unwrap();
        let writer = writer(&dir);
        let mut answers: Vec<_> = [1, -2, 3, 1, 4].into_iter().map(|x| insert(&writer, x)).collect();
        assert!(answers.iter_mut().all(|answer| answer.try_recv().is_err()), "a change was made too early");
        writer.commit_waiting();
        let answers: Vec<_> = answers.into_iter().map(|mut answer| answer.try_recv().unwrap()).collect();
        assert_eq!((rows(&writer), writer.commits()), (vec![1, 3, 4], 3));
        assert!(matches!(answers[..], [Ok(()), Err(MetaError::Refused(_)), Ok(()), Err(MetaError::Storage(_)), Ok(())]));
    }

    #[test]
    fn a_transaction_that_fails_fails_each_change_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let writer = writer(&dir);
        let mut good = insert(&writer, 1);
        // As SQLite itself does after some errors.
        let mut bad = writer.enqueue(|tx| Ok(tx.execute_batch("ROLLBACK")?));
        writer.commit_waiting();
        assert!(good.try_recv().unwrap().is_err() && bad.try_recv().unwrap().is_err());
        assert_eq!(rows(&writer), [] as [i64; 0]);
        let mut next = insert(&writer, 2);
        writer.commit_waiting();
        assert!(next.try_recv().unwrap().is_ok(), "the next transaction must work");
    }

    #[test]
    fn a_group_is_bounded_and_the_rest_follows() {
        let dir = tempfile::tempdir().unwrap();
        let writer = writer(&dir);
        let mut answers: Vec<_> = (0..=GROUP_MAX as i64).map(|x| insert(&writer, x)).collect();
        writer.commit_waiting();
        assert!(answers[GROUP_MAX].try_recv().is_err(), "one more than a group");
        writer.commit_waiting();
        assert!(answers[GROUP_MAX].try_recv().unwrap().is_ok());
        assert_eq!(rows(&writer).len(), GROUP_MAX + 1);
    }
}
