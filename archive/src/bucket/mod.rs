//! A store that is a bucket, of whatever service speaks S3: its objects begin with the archive's path.
//!
//! Calls block, and each ends within a bound ([`settings::Patience`]). A request is made again if it failed,
//! or no answer came; then it may have been done before. The invariant: a call says that something was
//! written only if the bytes of this call are there, and that it was not only if other bytes are. So a call
//! whose answer was lost is not taken for another writer's.
//!
//! | module | its noun |
//! |---|---|
//! | [`settings`] | where the bucket is, and how long a call may take |
//! | [`keys`] | the keys that sign requests |
//! | `http` | connections, and requests on them |
//! | `trouble` | the reason why a request failed, in words for its reader |

mod http;
pub mod keys;
pub mod settings;
mod trouble;

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};

use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{
    BackoffConfig, Error, ObjectStore, ObjectStoreExt, PutMode, PutPayload, RetryConfig, UpdateVersion,
};
use tokio::runtime::{Builder, Runtime};

use crate::store::{Store, StoreError};
use keys::Keys;
use settings::{Patience, Settings};
use trouble::{Trouble, Verdict};

/// A bucket, and the part of it that an archive has.
pub struct BucketStore {
    url: String,
    bucket: String,
    path: String,
    patience: Patience,
    keys: Arc<Keys>,
    client: AmazonS3,
    /// The store was seen to keep conditions. Held while that is seen to.
    is_proven: Mutex<bool>,
    /// The last call failed: then the next one makes one attempt, so that many calls in a row end soon.
    is_away: AtomicBool,
    /// Runs while a call does; there until the store is dropped.
    runtime: Option<Runtime>,
}

/// The result of one attempt: trouble that nothing below has noted has words of its own.
type Attempt<T> = Result<T, Error>;

impl BucketStore {
    /// A bucket that nothing is asked of yet. Its calls block, so a task of an asynchronous runtime must not
    /// make them.
    ///
    /// # Errors
    /// If a file of authorities cannot be read.
    pub fn new(settings: Settings) -> Result<BucketStore, StoreError> {
        let url = settings.url();
        let refused =
            |why: String| StoreError::Refused { store: url.clone(), what: "its settings".into(), why };
        let keys = Arc::new(Keys::new(settings.source.clone()));
        let connector = http::Connector::new(&settings).map_err(refused)?;
        // Attempts are counted here, where each is signed anew and what an earlier one did is looked at.
        let once = RetryConfig {
            backoff: BackoffConfig::default(),
            max_retries: 0,
            retry_timeout: settings.patience.answer,
        };
        let client = AmazonS3Builder::new()
            .with_bucket_name(&settings.bucket)
            .with_region(&settings.region)
            .with_endpoint(settings.endpoint.to_string().trim_end_matches('/'))
            .with_credentials(keys.clone())
            .with_allow_http(true)
            .with_disable_bulk_delete(true)
            .with_retry(once)
            .with_http_connector(connector)
            .build()
            .map_err(|error| refused(error.to_string()))?;
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| refused(error.to_string()))?;
        Ok(BucketStore {
            url,
            bucket: settings.bucket,
            path: settings.path,
            patience: settings.patience,
            keys,
            client,
            is_proven: Mutex::new(false),
            is_away: AtomicBool::new(false),
            runtime: Some(runtime),
        })
    }

    /// Sees to it that objects can be written, listed and removed, and that the store keeps conditions:
    /// one that ignores them would let two writers spoil an archive. Does nothing once that was seen.
    ///
    /// # Errors
    /// If the store refuses, fails, or ignores conditions.
    pub fn prove(&self) -> Result<(), StoreError> {
        let mut is_proven = self.is_proven.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_proven {
            let name = format!("{PROBES}{:016x}", crate::writer::drawn(&self.url));
            let proven = self.probe(&name);
            let removed = self.remove_one(&name);
            proven.and(removed)?;
            *is_proven = true;
        }
        Ok(())
    }

    fn probe(&self, name: &str) -> Result<(), StoreError> {
        let ignores = |what: &str| StoreError::Refused {
            store: self.url.clone(),
            what: "archives".into(),
            why: format!(
                "it ignores the condition {what}, so two writers would spoil the archive: use another service"
            ),
        };
        let what = "a first object";
        self.create(name, b"1", what)?;
        if self.create(name, b"2", what)? {
            return Err(ignores("If-None-Match"));
        }
        let is_replaced = self.attempts(what, async |_| {
            let version = UpdateVersion { e_tag: Some(NO_ETAG.into()), version: None };
            match self.put_as(name, b"3", PutMode::Update(version)).await {
                Err(Error::Precondition { .. }) => Ok(false),
                put => put.map(|()| true),
            }
        })?;
        if is_replaced {
            return Err(ignores("If-Match"));
        }
        self.list(PROBES).map(drop)
    }

    fn key(&self, name: &str) -> String {
        match self.path.is_empty() {
            true => name.into(),
            false => format!("{}/{name}", self.path),
        }
    }

    async fn put_as(&self, name: &str, bytes: &[u8], mode: PutMode) -> Attempt<()> {
        let key = Path::parse(self.key(name))?;
        self.client.put_opts(&key, PutPayload::from(bytes.to_vec()), mode.into()).await.map(drop)
    }

    /// An object and its tag; none if it is not there.
    async fn read(&self, name: &str) -> Attempt<Option<(Vec<u8>, Option<String>)>> {
        let found = match self.client.get(&Path::parse(self.key(name))?).await {
            Err(Error::NotFound { .. }) if trouble::is_no_such_object() => {
                trouble::clear();
                return Ok(None);
            }
            found => found?,
        };
        let tag = found.meta.e_tag.clone();
        Ok(Some((found.bytes().await?.to_vec(), tag)))
    }

    /// Writes an object that is not there. Says whether this call has written it.
    fn create(&self, name: &str, bytes: &[u8], what: &str) -> Result<bool, StoreError> {
        self.attempts(what, async |again| {
            let refused = match self.put_as(name, bytes, PutMode::Create).await {
                Err(error @ Error::AlreadyExists { .. }) => error,
                put => return put.map(|()| true),
            };
            match self.read(name).await? {
                // An earlier attempt has written it, and its answer was lost.
                Some((there, _)) => Ok(again && there == bytes),
                // Another request of that name was under way, and came to nothing.
                None => Err(refused),
            }
        })
    }

    fn replace(&self, name: &str, old: &[u8], new: &[u8], what: &str) -> Result<bool, StoreError> {
        self.attempts(what, async |again| {
            let e_tag = match self.read(name).await? {
                Some((there, e_tag)) if there == old => e_tag,
                // An earlier attempt has replaced it, and its answer was lost.
                Some((there, _)) => return Ok(again && there == new),
                None => return Ok(false),
            };
            let version = UpdateVersion { e_tag, version: None };
            let refused = match self.put_as(name, new, PutMode::Update(version)).await {
                Err(error @ (Error::Precondition { .. } | Error::AlreadyExists { .. })) => error,
                put => return put.map(|()| true),
            };
            match self.read(name).await? {
                // Another request was under way, and came to nothing.
                Some((there, _)) if there == old => Err(refused),
                Some((there, _)) => Ok(again && there == new),
                None => Ok(false),
            }
        })
    }

    fn remove_one(&self, name: &str) -> Result<(), StoreError> {
        self.attempts(&format!("removing {name}"), async |_| {
            match self.client.delete(&Path::parse(self.key(name))?).await {
                Err(Error::NotFound { .. }) if trouble::is_no_such_object() => Ok(()),
                removed => removed,
            }
        })
    }

    /// Makes attempts until one succeeds, or is refused, or there were enough. An attempt is told whether an
    /// earlier one may have been done.
    fn attempts<T>(&self, what: &str, attempt: impl AsyncFn(bool) -> Attempt<T>) -> Result<T, StoreError> {
        let (store, what) = (self.url.clone(), what.to_string());
        let Some(runtime) = &self.runtime else {
            return Err(StoreError::Failed { store, what, why: "it was dropped".into() });
        };
        let attempts = if self.is_away.load(SeqCst) { 1 } else { self.patience.attempts };
        runtime.block_on(async {
            let mut pause = self.patience.pause;
            let mut made = 1;
            loop {
                let (result, trouble) = trouble::noted(attempt(made > 1)).await;
                let error = match result {
                    Ok(done) => {
                        self.is_away.store(false, SeqCst);
                        return Ok(done);
                    }
                    Err(error) => error,
                };
                match self.verdict(&error, trouble) {
                    Verdict::Refused(why) => return Err(StoreError::Refused { store, what, why }),
                    Verdict::Again(why) if made >= attempts => {
                        self.is_away.store(true, SeqCst);
                        return Err(StoreError::Failed {
                            store,
                            what,
                            why: format!("{why} (attempts: {made})"),
                        });
                    }
                    Verdict::Again(_) => {}
                }
                tokio::time::sleep(pause).await;
                (pause, made) = (pause * 3, made + 1);
            }
        })
    }

    fn verdict(&self, error: &Error, trouble: Option<Trouble>) -> Verdict {
        let scrub = |text: &str| self.keys.scrub(text);
        match trouble {
            Some(trouble) => trouble::judge(&trouble, &self.bucket, &self.keys.text(), scrub),
            None => Verdict::Again(trouble::plain(&scrub(&error.to_string()))),
        }
    }
}

impl Store for BucketStore {
    fn url(&self) -> String {
        self.url.clone()
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<bool, StoreError> {
        self.prove()?;
        self.create(name, bytes, &format!("writing {name}"))
    }

    fn swap(&self, name: &str, old: Option<&[u8]>, new: &[u8]) -> Result<bool, StoreError> {
        self.prove()?;
        let what = format!("replacing {name}");
        match old {
            Some(old) => self.replace(name, old, new, &what),
            None => self.create(name, new, &what),
        }
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let found = self.attempts(&format!("reading {name}"), async |_| self.read(name).await)?;
        Ok(found.map(|(bytes, _)| bytes))
    }

    fn list(&self, begin: &str) -> Result<Vec<String>, StoreError> {
        let (prefix, own) = (self.key(begin), self.key(""));
        let (mut names, mut token) = (BTreeSet::new(), None);
        for _ in 0..PAGES_MAX {
            let page = self.attempts("listing", async |_| {
                let options =
                    PaginatedListOptions { page_token: token.clone(), ..PaginatedListOptions::default() };
                self.client.list_paginated(Some(prefix.as_str()), options).await
            })?;
            let keys = page.result.objects.iter().map(|object| object.location.as_ref());
            names.extend(keys.filter_map(|key| key.strip_prefix(own.as_str())).map(String::from));
            match page.page_token {
                None => return Ok(names.into_iter().collect()),
                next => token = next,
            }
        }
        let (what, why) =
            ("listing".into(), format!("it has more than {PAGES_MAX} pages, or they have no end"));
        Err(StoreError::Failed { store: self.url.clone(), what, why })
    }

    fn remove(&self, name: &str) -> Result<(), StoreError> {
        self.prove()?;
        self.remove_one(name)
    }
}

impl Drop for BucketStore {
    fn drop(&mut self) {
        // A look-up of a name may hang; nobody waits for it.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The beginning of the names by which a store is proven. They are removed at once.
const PROBES: &str = "probe/";

/// A tag that no object has.
const NO_ETAG: &str = "\"00000000000000000000000000000000\"";

/// Pages of a list, of a thousand names mostly: more than two weeks of an archive have, by a hundred times.
const PAGES_MAX: usize = 10_000;
