//! Changes since the database was opened: the stripes of objects that were written or dropped, the totals of each bucket and code, and the amount
//! of garbage of each disk. And the epoch and the last stripe at that time.
//!
//! Temporary triggers on the writing connection maintain them, within the transaction of each change: no method can forget to do so, and a
//! rollback undoes it. They exist in memory until the connection closes, so they are not part of the schema. The list holds only the
//! changes that its reader has not taken yet; a transaction that drops an object uses far more memory than its entries here.

use crate::{MetaError, Result, Totals};
use rusqlite::{Connection, Row, Transaction};
use weft_types::{Amount, DiskNumber, Epoch, GarbageReason, Home, NodeId, StripeId};

const FEED: &str = "
CREATE TEMP TABLE opened AS SELECT epoch, stripes_high_water FROM main.cluster;

CREATE TEMP TABLE changed_stripes (id INTEGER PRIMARY KEY);
CREATE TEMP TRIGGER stripe_changed AFTER UPDATE ON main.stripes WHEN new.object IS NOT NULL
BEGIN INSERT OR IGNORE INTO changed_stripes VALUES (new.id); END;
CREATE TEMP TRIGGER stripe_dropped AFTER DELETE ON main.stripes WHEN old.object IS NOT NULL
BEGIN INSERT OR IGNORE INTO changed_stripes VALUES (old.id); END;

CREATE TEMP TABLE totals (bucket TEXT, code TEXT, objects INTEGER, stripes INTEGER, bytes INTEGER, PRIMARY KEY (bucket, code));
INSERT INTO totals SELECT bucket, code, count(*), sum(stripes), sum(size) FROM main.objects GROUP BY bucket, code;
CREATE TEMP TRIGGER object_added AFTER INSERT ON main.objects
BEGIN
    INSERT INTO totals VALUES (new.bucket, new.code, 1, new.stripes, new.size) ON CONFLICT (bucket, code) DO UPDATE
    SET objects = objects + 1, stripes = stripes + excluded.stripes, bytes = bytes + excluded.bytes;
END;
CREATE TEMP TRIGGER object_extended AFTER UPDATE OF size ON main.objects
BEGIN
    UPDATE totals SET bytes = bytes + new.size - old.size WHERE bucket = new.bucket AND code = new.code;
END;
CREATE TEMP TRIGGER object_dropped AFTER DELETE ON main.objects
BEGIN
    UPDATE totals SET objects = objects - 1, stripes = stripes - old.stripes, bytes = bytes - old.size
    WHERE bucket = old.bucket AND code = old.code;
    DELETE FROM totals WHERE bucket = old.bucket AND code = old.code AND objects = 0;
END;

CREATE TEMP TABLE garbage_on (node INTEGER, disk INTEGER, blocks INTEGER, bytes INTEGER, PRIMARY KEY (node, disk));
INSERT INTO garbage_on SELECT node, disk, count(*), coalesce(sum(bytes), 0) FROM main.garbage GROUP BY node, disk;
CREATE TEMP TRIGGER garbage_added AFTER INSERT ON main.garbage
BEGIN
    INSERT INTO garbage_on VALUES (new.node, new.disk, 1, coalesce(new.bytes, 0)) ON CONFLICT (node, disk) DO UPDATE
    SET blocks = blocks + 1, bytes = bytes + excluded.bytes;
END;
CREATE TEMP TRIGGER garbage_followed AFTER UPDATE OF node, disk ON main.garbage
BEGIN
    UPDATE garbage_on SET blocks = blocks - 1, bytes = bytes - coalesce(old.bytes, 0) WHERE node = old.node AND disk = old.disk;
    DELETE FROM garbage_on WHERE node = old.node AND disk = old.disk AND blocks <= 0;
    INSERT INTO garbage_on VALUES (new.node, new.disk, 1, coalesce(new.bytes, 0)) ON CONFLICT (node, disk) DO UPDATE
    SET blocks = blocks + 1, bytes = bytes + excluded.bytes;
END;
CREATE TEMP TRIGGER garbage_dropped AFTER DELETE ON main.garbage
BEGIN
    UPDATE garbage_on SET blocks = blocks - 1, bytes = bytes - coalesce(old.bytes, 0) WHERE node = old.node AND disk = old.disk;
    DELETE FROM garbage_on WHERE node = old.node AND disk = old.disk AND blocks <= 0;
END;";

/// Starts to record changes. Counts the objects and the garbage once.
pub(super) fn record(writer: &Connection) -> Result<()> {
    writer.pragma_update(None, "temp_store", "MEMORY")?;
    // Otherwise rows that are replaced by others run no triggers.
    writer.pragma_update(None, "recursive_triggers", true)?;
    Ok(writer.execute_batch(FEED)?)
}

/// The reason for the garbage that an unused allocation becomes. If it is older than this process, the database may be an old copy, and the
/// block may have become part of an object after the copy was made: then it is unexpected garbage.
pub(super) fn given_up(tx: &Transaction<'_>, allocated: Allocated) -> Result<GarbageReason> {
    let mut opened = tx.prepare_cached("SELECT epoch, stripes_high_water FROM temp.opened")?;
    let (epoch, stripes): (u64, u64) = opened.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let is_earlier = match allocated {
        Allocated::In(at) => at.0 <= epoch,
        Allocated::For(stripe) => stripe.0 <= stripes,
    };
    Ok(if is_earlier { GarbageReason::Unexpected } else { GarbageReason::GivenUp })
}

/// When a block was allocated.
#[derive(Debug, Clone, Copy)]
pub(super) enum Allocated {
    /// In this epoch.
    In(Epoch),
    /// With its stripe.
    For(StripeId),
}

/// Takes at most `limit` stripes that changed.
pub(super) fn take_changed(writer: &Connection, limit: u32) -> Result<Vec<StripeId>> {
    // Most calls find no changes, and a query is cheaper than a transaction.
    let mut first = writer.prepare_cached("SELECT id FROM changed_stripes ORDER BY id LIMIT ?1")?;
    let changed = first.query_map([limit], |row| Ok(StripeId(row.get(0)?)))?.collect::<Result<Vec<_>, _>>()?;
    if let Some(last) = changed.last() {
        writer.prepare_cached("DELETE FROM changed_stripes WHERE id <= ?1")?.execute([last.0])?;
    }
    Ok(changed)
}

/// The totals of the objects of each code, by its spec.
pub(super) fn totals_by_code(writer: &Connection) -> Result<Vec<(String, Totals)>> {
    let sql = "SELECT code, sum(objects), sum(stripes), sum(bytes) FROM totals GROUP BY code ORDER BY code";
    let mut statement = writer.prepare_cached(sql)?;
    let totals = statement.query_map([], |row| Ok((row.get(0)?, totals_in(row, 1)?)))?;
    totals.collect::<Result<_, _>>().map_err(MetaError::from)
}

/// The totals of the objects of each bucket and code, by the bucket's name and the code's spec.
pub(super) fn totals_by_bucket(writer: &Connection) -> Result<Vec<(String, String, Totals)>> {
    let sql = "SELECT bucket, code, objects, stripes, bytes FROM totals ORDER BY bucket, code";
    let mut statement = writer.prepare_cached(sql)?;
    let totals = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, totals_in(row, 2)?)))?;
    totals.collect::<Result<_, _>>().map_err(MetaError::from)
}

/// The amount of garbage on each disk that has some.
pub(super) fn garbage_per_disk(writer: &Connection) -> Result<Vec<(Home, Amount)>> {
    let mut statement = writer.prepare_cached("SELECT node, disk, blocks, bytes FROM temp.garbage_on ORDER BY node, disk")?;
    let amounts = statement.query_map([], |row| {
        let home = Home { node: NodeId(row.get(0)?), disk: DiskNumber(row.get(1)?) };
        Ok((home, Amount { blocks: row.get(2)?, bytes: row.get(3)? }))
    })?;
    amounts.collect::<Result<_, _>>().map_err(MetaError::from)
}

/// The totals in three columns of a row, from the first of them.
fn totals_in(row: &Row<'_>, first: usize) -> rusqlite::Result<Totals> {
    Ok(Totals { objects: row.get(first)?, stripes: row.get(first + 1)?, data_bytes: row.get(first + 2)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::schema;

    #[test]
    fn the_garbage_of_each_disk_follows_each_change() {
        let mut writer = Connection::open_in_memory().unwrap();
        writer.pragma_update(None, "foreign_keys", false).unwrap();
        schema::migrate(&mut writer).unwrap();
        let add = |node: u32, bytes: Option<u64>| {
            let sql = "INSERT OR IGNORE INTO garbage (node, stripe, idx, copy, generation, disk, not_before_ms, reason, bytes)
                       VALUES (?1, 7, 0, 0, 1, ?1, 5, 'removed', ?2)";
            writer.execute(sql, (node, bytes)).unwrap()
        };
        assert_eq!(add(1, Some(10)), 1);
        record(&writer).unwrap();
        let amounts = || -> Vec<(u32, u64, u64)> {
            let amounts = garbage_per_disk(&writer).unwrap().into_iter();
            amounts.map(|(home, amount)| (home.node.0, amount.blocks, amount.bytes)).collect()
        };
        assert_eq!((amounts(), add(1, Some(99)), add(2, None)), (vec![(1, 1, 10)], 0, 1));
        assert_eq!(amounts(), [(1, 1, 10), (2, 1, 0)]);
        // A block that follows its disk replaces one that was garbage at the other node, too.
        assert_eq!(writer.execute("UPDATE OR REPLACE garbage SET node = 2, disk = 2 WHERE node = 1", []), Ok(1));
        assert_eq!(amounts(), [(2, 1, 10)]);
        assert_eq!(writer.execute("UPDATE garbage SET reason = 'repaired'", []), Ok(1));
        assert_eq!((add(1, Some(7)), amounts()), (1, vec![(1, 1, 7), (2, 1, 10)]));
        assert_eq!((writer.execute("DELETE FROM garbage WHERE node = 2", []), amounts()), (Ok(1), vec![(1, 1, 7)]));
    }
}
