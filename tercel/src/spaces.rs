//! Several spaces, and sessions over them.

use std::any::Any;
use std::sync::Arc;
use std::task::Waker;

use tercel_engine::Error;
use tercel_engine::spaces::Session;
use tercel_engine::time::Now;
use tercel_engine::txn::{Claim, ExpressAsked, ExpressCall, Expressed, Home, Port, Step, TaskPort};

use crate::client::{Client, ClientConfig};

/// The clients of several spaces, by name. A [`Session`] over them reads causally: a reader that sees a
/// change in one space sees, in every other, at least what the session had seen that made it.
///
/// Each client has its own cache and connection, of the size and with the waits of its
/// [`ClientConfig`]. [`Session::run`] writes several spaces, in all of them or in none.
///
/// ```
/// use tercel::{Object, SessionToken, Spaces, Text, Tx};
///
/// #[derive(Object)]
/// struct Note {
///     text: Text,
/// }
///
/// # let dir = std::env::temp_dir().join(format!("tercel-doc-spaces-{}", std::process::id()));
/// let spaces = Spaces::new()
///     .with("people", tercel::embedded(dir.join("people"))?)
///     .with("letters", tercel::embedded(dir.join("letters"))?);
///
/// // What a session does in one space rests on all that it has seen in the others.
/// let session = spaces.session();
/// let note = |text: &str| Note { text: text.into() };
/// session.space("people")?.run(|tx| tx.set_root("ann", tx.create(&note("moved"))?))?;
/// session.space("letters")?.run(|tx| tx.set_root("ann", tx.create(&note("to her new place"))?))?;
///
/// // Another session that sees the letter sees the move as well, and a cut has both or neither.
/// let other = spaces.session();
/// other.space("letters")?.read(|tx| tx.get_root::<Note>("ann").map(|_| ()))?;
/// let text = |tx: &Tx<'_>| Ok(tx.get_root::<Note>("ann")?.text()?.to_string());
/// assert_eq!(other.space("people")?.read(text)?, "moved");
/// other.read(|cut| {
///     cut.space("letters")?.get_root::<Note>("ann")?;
///     cut.space("people")?.get_root::<Note>("ann").map(|_| ())
/// })?;
///
/// // Written in both, or in neither.
/// session.run(|tx| {
///     tx.space("people")?.get_root::<Note>("ann")?.edit()?.set_text("moved again")?;
///     tx.space("letters")?.get_root::<Note>("ann")?.edit()?.set_text("to her newest place")
/// })?;
///
/// // Another process goes on from here with the token.
/// let token = session.token()?.to_string();
/// spaces.session().absorb(&token.parse::<SessionToken>()?)?;
/// # drop(spaces);
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct Spaces {
    clients: Vec<(String, Client)>,
}

impl Spaces {
    /// No spaces yet.
    pub fn new() -> Spaces {
        Spaces::default()
    }

    /// Connects to each of these, by name and address, as [`Client::connect`] does.
    ///
    /// # Errors
    /// `Invalid` if a name comes twice; as [`Client::connect`].
    pub fn connect<'a>(named: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Spaces, Error> {
        Spaces::connect_with(named, ClientConfig::default())
    }

    /// Connects to each of these, by name and address, with a client of the same settings each: a
    /// [`ClientConfig`], or a [`ClientBuilder`](crate::ClientBuilder).
    ///
    /// # Errors
    /// As [`Spaces::connect`]; `Invalid` if a setting cannot be meant.
    pub fn connect_with<'a>(
        named: impl IntoIterator<Item = (&'a str, &'a str)>,
        config: impl Into<ClientConfig>,
    ) -> Result<Spaces, Error> {
        let config = config.into();
        named.into_iter().try_fold(Spaces::new(), |spaces, (name, at)| {
            spaces.has_no(name)?;
            Ok(spaces.with(name, Client::connect_with(at, config.clone())?))
        })
    }

    /// [`Spaces::connect`] for a task of an asynchronous runtime, as [`Client::connect_async`].
    ///
    /// # Errors
    /// As [`Spaces::connect`].
    pub async fn connect_async<'a>(
        named: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Spaces, Error> {
        Spaces::connect_async_with(named, ClientConfig::default()).await
    }

    /// [`Spaces::connect_with`] for a task, as [`Client::connect_async`].
    ///
    /// # Errors
    /// As [`Spaces::connect_with`].
    pub async fn connect_async_with<'a>(
        named: impl IntoIterator<Item = (&'a str, &'a str)>,
        config: impl Into<ClientConfig>,
    ) -> Result<Spaces, Error> {
        let (config, mut spaces) = (config.into(), Spaces::new());
        for (name, at) in named {
            spaces.has_no(name)?;
            spaces = spaces.with(name, Client::connect_async_with(at, config.clone()).await?);
        }
        Ok(spaces)
    }

    fn has_no(&self, name: &str) -> Result<(), Error> {
        match self.client(name) {
            Some(_) => {
                Err(Error::Invalid(format!("two spaces are named `{name}`: give each a name of its own")))
            }
            None => Ok(()),
        }
    }

    /// Adds the space of a client. A name that is there already is of this client from now on.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, client: Client) -> Spaces {
        let name = name.into();
        self.clients.retain(|(other, _)| *other != name);
        self.clients.push((name, client));
        self
    }

    /// The client of a space, for what has no part in a session.
    pub fn client(&self, name: &str) -> Option<&Client> {
        self.clients.iter().find(|(other, _)| other == name).map(|(_, client)| client)
    }

    /// A session that has seen nothing yet. It keeps the clients, so it may outlive what it was made of.
    pub fn session(&self) -> Session<'static> {
        let own = |(name, client): &(String, Client)| {
            (name.clone(), Arc::new(Own(client.clone())) as Arc<dyn Port + Send + Sync>)
        };
        Session::owning(self.clients.iter().map(own))
    }
}

/// A client as the way of a session, which keeps it.
struct Own(Client);

impl Port for Own {
    fn now(&self) -> Now {
        // Where there is no client there is nothing that could wait, either.
        self.0.shared_port().map_or(Now(0), |port| port.now())
    }

    fn drive(
        &self,
        until: Option<Now>,
        step: &mut dyn FnMut(&mut dyn Home, Now) -> Step,
    ) -> Result<(), Error> {
        self.0.shared_port()?.drive(until, step)
    }

    fn drive_patiently(
        &self,
        until: Option<Now>,
        step: &mut dyn FnMut(&mut dyn Home, Now) -> Step,
    ) -> Result<(), Error> {
        self.0.shared_port()?.drive_patiently(until, step)
    }

    fn express(&self, asked: &ExpressAsked, call: &mut dyn ExpressCall) -> Expressed {
        self.0.shared_port().map_or(Expressed::No, |port| port.express(asked, call))
    }

    fn wait_for_slow(&self) -> Result<Option<Box<dyn Any>>, Error> {
        self.0.shared_port()?.wait_for_slow()
    }

    fn back_off(&self, us: u64) {
        self.0.shared_port().into_iter().for_each(|port| port.back_off(us));
    }

    fn make_way(&self) {
        self.0.shared_port().into_iter().for_each(|port| port.make_way());
    }

    fn claim_way(&self) -> Option<Box<dyn Claim + '_>> {
        self.0.shared_port().ok()?.claim_way()
    }

    fn for_task<'a>(&'a self, waker: &'a Waker) -> Option<Box<dyn TaskPort + 'a>> {
        self.0.shared_port().ok()?.for_task(waker)
    }

    fn pause(&self) {
        self.0.shared_port().into_iter().for_each(|port| port.pause());
    }
}
