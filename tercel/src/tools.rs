//! For tools that look at files, pages and frames, such as `tercel inspect`, `check` and `bench`. No promise
//! of stability: what is here changes with the formats and the machines, also where the rest of this crate
//! does not.
//!
//! A program that stores objects needs none of it.
//!
//! | module | its noun |
//! |---|---|
//! | [`disk`] | the files of a data directory |
//! | [`wire`] | how frames, messages, records, pages and the log look as bytes |
//! | [`heap`], [`engine`], [`events`] | the crates below this one: the cache, the machines, the kernel's events |

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tercel_collections::table::untyped::{Declared, UntypedTable};
use tercel_engine::server::Consult;
use tercel_engine::txn::{Home, Isolation, Query};
use tercel_wire::id::{ClassId, Oref, PageId, SpaceId};
use tercel_wire::interface::Interface;
use tercel_wire::layout::Layout;
use tercel_wire::message::Settle;
use tercel_wire::page::{PAGE_BYTES, class_of};
use tercel_wire::record::{HEADER_BYTES, Ref};
use tercel_wire::vector::Vector;

use crate::disk::DiskError;
use crate::disk::dir::{DataDir, NewSpace};
use crate::disk::log::LogConfig;
use crate::disk::pages::RedbPages;
use crate::server::links::step;
use crate::{Client, ClientConfig, Error, ServerConfig, WatchBuilder};

/// Certificates in files, for a program with connections of its own.
pub mod certificates {
    pub use crate::identity::client_named;
    pub use crate::tls::{Anew, ENDLESS, certificates, days_left, end_of, private_key, wrong};
    pub use crate::tls::{Handshake, Sealed, Step};
}

#[doc(hidden)]
pub use crate::address::network_of;
#[doc(hidden)]
pub use crate::once::{OTHER_REQUEST, returned_under};
pub use crate::panics::is_expected;
pub use tercel_engine as engine;
pub use tercel_engine::rpc::{Described, Reply};
pub use tercel_engine::txn::stored;
pub use tercel_events as events;
pub use tercel_heap as heap;
pub use tercel_wire as wire;

/// Has a watch tell of what a query finds, without its types.
#[doc(hidden)]
pub fn watch_query(watch: WatchBuilder, query: Box<dyn Query>) -> WatchBuilder {
    watch.found_by(query)
}

/// The files of a server.
pub mod disk {
    pub use crate::disk::{DiskError, dir, log, pages};
}

/// The classes of the space.
///
/// ```
/// use tercel::{Object, tools};
///
/// #[derive(Object)]
/// struct Counter {
///     count: u64,
/// }
///
/// # let dir = std::env::temp_dir().join(format!("tercel-doc-tools-{}", std::process::id()));
/// let space = tercel::embedded(&dir)?;
/// let counter = space.run(|tx| tx.create(&Counter { count: 7 }))?;
/// assert!(tools::classes(&space)?.iter().any(|(_, layout)| layout.name() == "Counter"));
///
/// let (_, layout, body) = tools::stored_object(&space, counter.oref())?;
/// let at = layout.field("count").expect("a field").at;
/// assert_eq!(body[at], 7);
/// assert!(tools::page(&space, counter.oref().page())?.is_some());
/// assert!(tools::with_machine(&space, |machine| machine.stats().commits)? > 0);
/// # space.close()?;
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// `Unavailable`, `Timeout`.
pub fn classes(client: &Client) -> Result<Vec<(ClassId, Arc<Layout>)>, Error> {
    client.ask(|machine| machine.all_classes())
}

/// Opens a data directory in this process with a cache whose own tables do not count against its bytes, for
/// comparisons of policies.
///
/// # Errors
/// As [`embedded_with`](crate::embedded_with).
pub fn embedded_uncharged(server: ServerConfig, client: ClientConfig) -> Result<Client, Error> {
    crate::client::embedded_uncharged(server, client)
}

/// The interfaces whose methods the server runs.
///
/// # Errors
/// `Unavailable`, `Timeout`.
pub fn interfaces(client: &Client) -> Result<Vec<Interface>, Error> {
    client.ask(|machine| machine.interfaces())
}

/// Has the space forget that it rests on another, which is gone for good or never was: 64 others are all it
/// can rest on. Sessions that come from it see no causes there any more, and one that has seen the space
/// brings it back: have all spaces forget it.
///
/// # Errors
/// `Unavailable`, `Timeout`, `Full` if the server's disk is.
pub fn forget_space(client: &Client, space: SpaceId) -> Result<(), Error> {
    client.ask(|machine| Home::depend(machine, &Vector::forgetting(space)))
}

/// Ends by hand what the space has prepared of a transaction over several spaces, because the space that
/// decides is gone for good.
///
/// # Errors
/// `Unavailable`, `Timeout`, `Full` if the server's disk is.
pub fn settle(client: &Client, settle: Settle) -> Result<(), Error> {
    let (consult, mut call) = (Consult::Settle { participant: settle.coordinator, settle }, None);
    client.ask(|machine| step(machine, &consult, &mut call)).map(|_| ())
}

/// Calls a method by the server's description, for a tool that has neither class nor service. Gives nothing
/// if it is never answered.
///
/// # Errors
/// As [`Described::call`].
pub fn call(client: &Client, call: &Described<'_>) -> Result<Option<Reply>, Error> {
    call.call(client.port()?)
}

/// A page as the server has it, unchecked and past the cache; none if nothing was ever written to it.
///
/// # Errors
/// `Unavailable`, `Timeout`, `Corrupt`.
pub fn page(client: &Client, page: PageId) -> Result<Option<Vec<u8>>, Error> {
    let mut call = None;
    client.ask(|machine| machine.raw_page(page, &mut call))
}

/// An object in stored form, header left out, with its class: for a tool that does not know the class.
///
/// # Errors
/// `NotFound`, `Corrupt`, and as [`Tx::get`](crate::Tx::get).
pub fn stored_object(client: &Client, oref: Oref) -> Result<(ClassId, Arc<Layout>, Vec<u8>), Error> {
    let reading = client.transaction().isolation(Isolation::Snapshot);
    let (layout, object) = reading.run(|tx| stored(tx, oref))?.ok_or_else(|| Error::not_found(oref))?;
    Ok((class_of(&object), layout, object[HEADER_BYTES..].to_vec()))
}

/// A table, by its declaration and the catalogue: for a tool that has no type of its rows.
///
/// # Errors
/// `NotFound`; `Schema` if the object is no table, or its declaration does not fit the class; and as
/// [`Tx::get`](crate::Tx::get).
pub fn table(client: &Client, top: Oref) -> Result<UntypedTable, Error> {
    match table_now(client, top) {
        // Perhaps by a catalogue from before the class was made or changed.
        Err(Error::Schema(_)) => {
            client.with_machine(engine::client::Client::look_at_classes_again)?;
            table_now(client, top)
        }
        table => table,
    }
}

fn table_now(client: &Client, top: Oref) -> Result<UntypedTable, Error> {
    let known = classes(client)?;
    let reading = client.transaction().isolation(Isolation::Snapshot);
    reading.run(|tx| {
        let declared = Declared::of(tx, Ref::new(top))?;
        // A class that was changed has several ids: the last is what programs write today.
        let layout = known.iter().rev().find(|(_, layout)| layout.name() == declared.class);
        let (_, layout) = layout.ok_or_else(|| {
            Error::Schema(format!("the space has no class {}: no row was ever inserted", declared.class))
        })?;
        UntypedTable::open(tx, Ref::new(top), layout.clone())
    })
}

/// Gives bytes of the page store in which nothing is any more back to the file system, for a directory that
/// no process has open: the length of the store's file before and after.
///
/// # Errors
/// If there is no space, if a process has it open, if there is no room for the copying, or if it is damaged.
pub fn compact(dir: &Path) -> Result<(u64, u64), DiskError> {
    if DataDir::is_absent(dir) {
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(DiskError::io("open", dir)(missing));
    }
    let new = NewSpace {
        id: None,
        page_bytes: PAGE_BYTES as u32,
        segment_bytes: LogConfig::default().segment_bytes,
    };
    let dir = DataDir::open(dir, &new)?;
    RedbPages::compact(&dir.pages_file(), dir.space().page_bytes)
}

/// The time for which the client has had no server, and why, for one that serves others and need not have
/// them wait; none if it has one.
///
/// # Errors
/// `Unavailable` in a process that was forked off the one with the embedded space.
pub fn outage(client: &Client) -> Result<Option<(Duration, String)>, Error> {
    client.outage()
}

/// Lets a closure use the client's machine under its lock: for measuring.
///
/// # Errors
/// `Unavailable` in a process that was forked off the one with the embedded space.
pub fn with_machine<R>(
    client: &Client,
    f: impl FnOnce(&mut engine::client::Client) -> R,
) -> Result<R, Error> {
    client.with_machine(f)
}
