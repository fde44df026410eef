//! Archives in buckets whose service fails, lags, lies, refuses, and is asked by two writers.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use tercel_archive::access::Access;
use tercel_archive::bucket::BucketStore;
use tercel_archive::bucket::settings::Settings;
use tercel_archive::catalogue::Catalogue;
use tercel_archive::copy::copy;
use tercel_archive::restore::Until;
use tercel_archive::store::{Store, StoreError};
use tercel_testkit::bucket::{BUCKET, Bucket, Fault, KEY_ID, Request, SECRET};

use crate::place::{Place, directories};
use crate::single::{Counting, archived, restored, until};

impl Place for Bucket {
    fn store(&self, archive: &str) -> Arc<dyn Store> {
        Arc::new(quick(self, archive))
    }

    fn set(&self, archive: &str, name: &str, bytes: Option<&[u8]>) {
        Bucket::set(self, &format!("{archive}/{name}"), bytes.map(<[u8]>::to_vec));
    }
}

fn url(archive: &str) -> String {
    format!("s3://{BUCKET}/{archive}")
}

fn access(bucket: &Bucket) -> Access {
    Access { variables: bucket.variables(), credentials: None }
}

fn settings(bucket: &Bucket, archive: &str) -> Settings {
    Settings::read(&url(archive), &access(bucket)).unwrap()
}

/// A store that soon tries again.
fn quick(bucket: &Bucket, archive: &str) -> BucketStore {
    let mut settings = settings(bucket, archive);
    settings.patience.pause = Duration::from_millis(1);
    BucketStore::new(settings).unwrap()
}

/// A store that does not wait long for answers, and makes so many attempts.
fn hasty(bucket: &Bucket, archive: &str, attempts: u32) -> BucketStore {
    let mut settings = settings(bucket, archive);
    settings.patience.pause = Duration::from_millis(1);
    settings.patience.answer = Duration::from_millis(200);
    settings.patience.attempts = attempts;
    BucketStore::new(settings).unwrap()
}

fn is_write(request: &Request, name: &str) -> bool {
    request.method == "PUT" && request.key.ends_with(name)
}

/// A judge that has a fault befall the first request that is so.
fn once(is_so: impl Fn(&Request) -> bool + Send, fault: Fault) -> impl FnMut(&Request) -> Fault + Send {
    let mut is_done = false;
    move |request| {
        let befalls = !is_done && is_so(request);
        is_done |= befalls;
        if befalls { fault } else { Fault::No }
    }
}

/// Every third request goes wrong, each in its own way, while a server commits.
#[test]
fn writer_gets_on_through_faults() {
    let dir = directories();
    let dir = dir.path();
    let bucket = Bucket::start();
    let mut space = Counting::begin(&dir.join("space"), 1 << 30);
    let store = Place::store(&bucket, "a");
    let faults = [
        Fault::Answers(500, "InternalError"),
        Fault::Loses,
        Fault::Answers(503, "SlowDown"),
        Fault::Cuts,
        Fault::Ends,
        Fault::Answers(409, "ConditionalRequestConflict"),
    ];
    let befell = Arc::new(AtomicU64::new(0));
    let counted = befell.clone();
    bucket.judge(move |request| match request.number % 3 {
        0 => faults[counted.fetch_add(1, SeqCst) as usize % faults.len()],
        _ => Fault::No,
    });
    let writer = space.archive(&store);
    for _ in 0..20 {
        space.count(5);
        archived(&writer, space.last());
    }
    let status = writer.stop();
    assert!(status.gaps == 0 && status.ended.is_none(), "{status:?}");
    assert!(befell.load(SeqCst) > 20, "{befell:?}");
    // Lists and readings go wrong in the same ways.
    let verified = Catalogue::open(&*store).unwrap().verify(|_| ()).unwrap();
    assert_eq!(verified.wrong, Vec::<String>::new());
    for (stamp, count) in space.model.iter().rev().step_by(17).take(5) {
        assert_eq!(restored(&*store, Until::Stamp(*stamp), &dir.join("restored")).unwrap(), *count);
    }
}

#[test]
fn lost_answer_is_not_another_writer() {
    for fault in [Fault::Loses, Fault::Cuts] {
        let bucket = Bucket::start();
        let store = quick(&bucket, "a");
        store.prove().unwrap();
        bucket.judge(once(|request| is_write(request, "a/log/1"), fault));
        assert!(store.put("log/1", b"mine").unwrap(), "{fault:?}");
        bucket.judge(once(|request| is_write(request, "a/head"), fault));
        assert!(store.swap("head", None, b"0").unwrap(), "{fault:?}");
        bucket.judge(once(|request| is_write(request, "a/head"), fault));
        assert!(store.swap("head", Some(b"0"), b"1").unwrap(), "{fault:?}");
        assert_eq!(bucket.object("a/head").as_deref(), Some(&b"1"[..]));
        let lost = bucket.requests().iter().filter(|(request, _)| is_write(request, "a/head")).count();
        assert_eq!(lost, 3, "the answer to the last one was looked for, and not the write repeated");
    }
}

/// Another request of the same name came to nothing: that is neither an object nor a refusal.
#[test]
fn conflict_without_an_object_is_tried_again() {
    let bucket = Bucket::start();
    let store = quick(&bucket, "a");
    store.prove().unwrap();
    for name in ["log/1", "head"] {
        let conflict = Fault::Answers(409, "ConditionalRequestConflict");
        bucket.judge(once(move |request| is_write(request, name), conflict));
        assert!(store.swap(name, None, b"0").unwrap(), "{name}");
        bucket.judge(once(move |request| is_write(request, name), conflict));
        assert!(store.swap(name, Some(b"0"), b"1").unwrap(), "{name}");
    }
}

/// Another writer's object of that name is not taken for one's own, also after a lost answer.
#[test]
fn object_of_another_is_told_from_ones_own() {
    let bucket = Bucket::start();
    let (one, two) = (quick(&bucket, "a"), quick(&bucket, "a"));
    assert!(one.put("log/1", b"theirs").unwrap());
    assert!(one.swap("head", None, b"theirs").unwrap());
    two.prove().unwrap();
    for fault in [Fault::Loses, Fault::Ends] {
        bucket.judge(once(|request| is_write(request, "a/log/1"), fault));
        assert!(!two.put("log/1", b"mine").unwrap(), "{fault:?}");
        bucket.judge(once(|request| request.key == "a/head", fault));
        assert!(!two.swap("head", None, b"mine").unwrap(), "{fault:?}");
        assert!(!two.swap("head", Some(b"before"), b"mine").unwrap(), "{fault:?}");
    }
    assert_eq!(bucket.object("a/head").as_deref(), Some(&b"theirs"[..]));
}

/// A write that was given up is carried out when its repetition has been, and changes nothing then.
#[test]
fn late_write_comes_to_nothing() {
    let bucket = Bucket::start();
    let store = hasty(&bucket, "a", 3);
    assert!(store.swap("head", None, b"0").unwrap());
    bucket.judge(once(|request| is_write(request, "a/head"), Fault::Waits));
    assert!(store.swap("head", Some(b"0"), b"1").unwrap());
    bucket.until_waiting(1);
    assert!(store.swap("head", Some(b"1"), b"2").unwrap());
    let late = |bucket: &Bucket| {
        let requests = bucket.requests();
        requests.iter().filter(|(request, _)| is_write(request, "a/head")).map(|(_, status)| *status).nth(1)
    };
    assert_eq!(late(&bucket), Some(0), "it waits still");
    bucket.mend();
    while late(&bucket) == Some(0) {
        thread::yield_now();
    }
    assert_eq!((late(&bucket), bucket.object("a/head")), (Some(412), Some(b"2".to_vec())));
}

#[test]
fn silent_service_is_given_up_in_time() {
    let bucket = Bucket::start();
    let store = hasty(&bucket, "a", 2);
    bucket.judge(|_| Fault::Waits);
    for attempts in [2, 1, 1] {
        // Once it is known to be away, a call makes one attempt.
        let before = bucket.requests().len();
        let why = store.get("head").unwrap_err();
        assert!(matches!(&why, StoreError::Failed { .. }), "{why}");
        let text = why.to_string();
        assert!(text.contains("s3://backups/a") && text.contains("no answer within 200 ms"), "{text}");
        assert_eq!(bucket.requests().len() - before, attempts);
    }
    bucket.mend();
    assert_eq!(store.get("head").unwrap(), None);
}

#[test]
fn two_writers_race_for_the_head() {
    for round in 0..8 {
        let bucket = Bucket::start();
        // The answer of every other write of the head by each of them is lost, so both look again for what
        // became of it.
        let mut writes = [round % 2, round / 2];
        bucket.judge(move |request| {
            let by = request.first.filter(|_| is_write(request, "a/head"));
            let Some(count) = by.and_then(|by| writes.get_mut(usize::from(by) - 1)) else { return Fault::No };
            *count += 1;
            if *count % 2 == 0 { Fault::Loses } else { Fault::No }
        });
        let swaps = |name: u8| {
            let store = quick(&bucket, "a");
            let (mut last, mut won) = (None, Vec::new());
            // The writer goes on until another one's bytes are there.
            for n in 0..20u8 {
                let new = vec![name, n];
                if !store.swap("head", last.as_deref(), &new).unwrap() {
                    return (won, true);
                }
                won.push(new.clone());
                last = Some(new);
            }
            (won, false)
        };
        let ((one, one_stopped), (two, two_stopped)) = thread::scope(|scope| {
            let one = scope.spawn(|| swaps(1));
            let two = scope.spawn(|| swaps(2));
            (one.join().unwrap(), two.join().unwrap())
        });
        assert!(one_stopped != two_stopped, "round {round}: one of two goes on, {one:?} {two:?}");
        let (winner, loser) = if one_stopped { (two, one) } else { (one, two) };
        assert_eq!((winner.len(), loser.len()), (20, 0), "round {round}");
        assert_eq!(bucket.object("a/head"), winner.last().cloned());
    }
}

/// A service that does not answer holds up neither the start nor commits, and what was missed follows.
#[test]
fn writer_begins_while_service_is_away() {
    let dir = directories();
    let dir = dir.path();
    let bucket = Bucket::start();
    bucket.judge(|_| Fault::Answers(503, "SlowDown"));
    let store: Arc<dyn Store> = Arc::new(hasty(&bucket, "a", 1));
    let mut space = Counting::begin(&dir.join("space"), 1 << 30);
    let writer = space.archive(&store);
    space.count(10);
    let (_, why) = until(&writer, |status| status.trouble.is_some()).trouble.unwrap();
    assert!(why.contains("503 SlowDown"), "{why}");
    assert!(bucket.names().is_empty(), "nothing is written before conditions are seen to be kept");
    bucket.mend();
    archived(&writer, space.last());
    writer.stop();
    assert_eq!(restored(&*store, Until::End, &dir.join("restored")).unwrap(), 10);
}

/// A list that lacks the newest objects hides none for good: the archive is told to lack them, and the next
/// reading finds them.
#[test]
fn stale_list_restores_nothing_false() {
    let dir = directories();
    let dir = dir.path();
    let bucket = Bucket::start();
    let mut space = Counting::begin(&dir.join("space"), 1 << 30);
    let store = Place::store(&bucket, "a");
    let writer = space.archive(&store);
    for _ in 0..4 {
        space.count(5);
        archived(&writer, space.last());
    }
    writer.stop();
    // The head is the newest object; behind it is the log's last one.
    bucket.judge(|request| if request.is_list { Fault::Lacks(3) } else { Fault::No });
    let why = restored(&*store, Until::End, &dir.join("restored")).unwrap_err().to_string();
    assert!(why.contains("it is missing"), "{why}");
    bucket.mend();
    assert_eq!(restored(&*store, Until::End, &dir.join("restored")).unwrap(), 20);
}

#[test]
fn archive_is_copied_in_both_directions() {
    let dir = directories();
    let bucket = Bucket::start();
    let mut space = Counting::begin(&dir.path().join("space"), 1 << 30);
    let (first, second) = (Place::store(&bucket, "a"), Place::store(&dir, "copied"));
    let writer = space.archive(&first);
    for _ in 0..3 {
        space.count(5);
        archived(&writer, space.last());
    }
    writer.stop();
    let third = Place::store(&bucket, "b");
    assert!(copy(&*first, &*second, |_| ()).unwrap().written > 3);
    assert_eq!(copy(&*first, &*second, |_| ()).unwrap().written, 0, "a copy is gone on with");
    copy(&*second, &*third, |_| ()).unwrap();
    let (names, back) = (second.list("").unwrap(), third.list("").unwrap());
    assert_eq!(names, back);
    for name in names {
        assert_eq!(second.get(&name).unwrap(), third.get(&name).unwrap(), "{name}");
    }
    assert_eq!(restored(&*third, Until::End, &dir.path().join("restored")).unwrap(), 15);
}

fn opened(bucket: &Bucket, change: impl Fn(&mut BTreeMap<String, String>)) -> Result<Arc<dyn Store>, String> {
    let mut access = access(bucket);
    change(&mut access.variables);
    let opened = tercel_archive::open(&url("a"), &access);
    opened.map_err(|error| {
        let (text, debug) = (error.to_string(), format!("{error:?} {access:?}"));
        assert!(!text.contains("geheim") && !debug.contains("geheim"), "{text} {debug}");
        assert!(matches!(error, StoreError::Refused { .. }), "{debug}");
        text
    })
}

fn refusal(bucket: &Bucket, variable: (&str, &str)) -> String {
    let set = |all: &mut BTreeMap<String, String>| _ = all.insert(variable.0.into(), variable.1.into());
    opened(bucket, set).err().unwrap()
}

#[test]
fn wrong_keys_are_refused_at_the_start() {
    let bucket = Bucket::start();
    opened(&bucket, |_| ()).unwrap();
    assert_eq!(bucket.names(), Vec::<String>::new(), "nothing is left of what was tried");
    let why = refusal(&bucket, ("AWS_ACCESS_KEY_ID", "ANOTHER"));
    assert!(why.contains("InvalidAccessKeyId") && why.contains("of AWS_ACCESS_KEY_ID"), "{why}");
    let why = refusal(&bucket, ("AWS_SECRET_ACCESS_KEY", "geheim-wrong"));
    assert!(why.contains("SignatureDoesNotMatch") && why.contains("secret key"), "{why}");
    bucket.ask_token("token-geheim");
    let why = refusal(&bucket, ("AWS_SESSION_TOKEN", "token-geheim-old"));
    assert!(why.contains("ExpiredToken") && why.contains("renew"), "{why}");
    opened(&bucket, |all| _ = all.insert("AWS_SESSION_TOKEN".into(), "token-geheim".into())).unwrap();
    let asked = bucket.requests().len();
    let why = opened(&bucket, |all| all.clear()).err().unwrap();
    assert!(why.contains("there are no keys"), "{why}");
    assert_eq!(bucket.requests().len(), asked, "a request without keys");
}

#[test]
fn refused_request_is_made_once() {
    let bucket = Bucket::start();
    bucket.judge(|_| Fault::Answers(403, "AccessDenied"));
    let store = quick(&bucket, "a");
    let why = store.get("head").unwrap_err().to_string();
    assert!(why.contains("read, write, remove and list objects in the bucket backups"), "{why}");
    assert_eq!(bucket.requests().len(), 1);
}

#[test]
fn secrets_are_in_no_message() {
    let bucket = Bucket::start();
    let mut access = access(&bucket);
    access.variables.insert("AWS_SESSION_TOKEN".into(), "token-geheim".into());
    let store = tercel_archive::existing(&url("a"), &access).unwrap();
    bucket.judge(|_| Fault::Repeats);
    for error in [
        store.get("head").unwrap_err(),
        store.put("log/1", b"1").unwrap_err(),
        store.list("").unwrap_err(),
        store.remove("log/1").unwrap_err(),
    ] {
        let (text, debug) = (error.to_string(), format!("{error:?}"));
        assert!(text.contains("AccessDenied: ***"), "the answer had the secret: {text}");
        for secret in [SECRET, "geheim"] {
            assert!(!text.contains(secret) && !debug.contains(secret), "{text}");
        }
    }
    assert!(!format!("{access:?}").contains("geheim"));
    let settings = Settings::read(&url("a"), &access).unwrap();
    assert!(!format!("{settings:?}").contains("geheim") && KEY_ID != SECRET);
}

#[test]
fn missing_bucket_is_named() {
    let bucket = Bucket::start();
    let opened = tercel_archive::open("s3://absent/a", &access(&bucket));
    let why = opened.err().unwrap().to_string();
    assert!(why.contains("NoSuchBucket") && why.contains("make the bucket absent"), "{why}");
    let read = tercel_archive::existing("s3://absent/a", &access(&bucket)).unwrap();
    assert!(
        read.get("head").unwrap_err().to_string().contains("NoSuchBucket"),
        "no archive is not no bucket"
    );
}

#[test]
fn service_without_conditions_is_refused() {
    for header in ["If-None-Match", "If-Match"] {
        let bucket = Bucket::start();
        let creates = AtomicU64::new(0);
        bucket.judge(move |request| {
            // Each probe creates twice, and replaces once.
            let writes = if request.method == "PUT" { creates.fetch_add(1, SeqCst) } else { 9 };
            match (header, writes) {
                ("If-None-Match", 1) | ("If-Match", 2) => Fault::IgnoresConditions,
                _ => Fault::No,
            }
        });
        let why = opened(&bucket, |_| ()).err().unwrap();
        assert!(why.contains(header) && why.contains("two writers"), "{why}");
        assert_eq!(bucket.names(), Vec::<String>::new());
    }
}

/// A store that was away when it was opened is seen to before each kind of first write.
#[test]
fn no_write_comes_before_the_proof() {
    type Write = fn(&BucketStore) -> Result<(), StoreError>;
    let writes: [Write; 3] = [
        |store| store.put("log/1", b"1").map(drop),
        |store| store.swap("head", None, b"1").map(drop),
        |store| store.remove("log/0"),
    ];
    for write in writes {
        let bucket = Bucket::start();
        bucket.set("a/log/0", Some(b"0".to_vec()));
        bucket.judge(|_| Fault::IgnoresConditions);
        let why = write(&quick(&bucket, "a")).unwrap_err().to_string();
        assert!(why.contains("If-None-Match"), "{why}");
        assert_eq!(bucket.names(), ["a/log/0"]);
    }
}

#[test]
fn renewed_file_of_keys_counts_at_once() {
    let dir = directories();
    let (bucket, path) = (Bucket::start(), dir.path().join("keys"));
    let write = |path: &Path, secret: &str| {
        let text = format!("[default]\naws_access_key_id = {KEY_ID}\naws_secret_access_key = {secret}\n");
        std::fs::write(path, text).unwrap();
    };
    let mut access = access(&bucket);
    (access.credentials, access.variables) = (Some(path.clone()), bucket.variables());
    access.variables.retain(|name, _| name == "AWS_ENDPOINT_URL");
    assert!(tercel_archive::open(&url("a"), &access).err().unwrap().to_string().contains("keys"));
    write(&path, SECRET);
    let store = tercel_archive::open(&url("a"), &access).unwrap();
    write(&path, "geheim-wrong");
    let why = store.put("log/1", b"1").unwrap_err().to_string();
    assert!(why.contains("[default] of") && !why.contains("geheim"), "{why}");
    write(&path, SECRET);
    assert!(store.put("log/1", b"1").unwrap());
}

#[test]
fn one_store_serves_many_threads() {
    let bucket = Bucket::start();
    let store = quick(&bucket, "a");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (store, is_over) = (&store, &is_over);
        let names: Vec<_> = (0..4).map(|n| format!("log/{n}")).collect();
        for name in names.clone() {
            scope.spawn(move || {
                assert!(store.put(&name, name.as_bytes()).unwrap());
                assert_eq!(store.get(&name).unwrap().as_deref(), Some(name.as_bytes()));
            });
        }
        scope.spawn(move || {
            while store.list("log/").unwrap() != names {
                thread::yield_now();
            }
            is_over.store(true, SeqCst);
        });
    });
    assert!(is_over.into_inner());
}
