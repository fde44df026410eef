//! Callers with tokens, and pages of other sites.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use rcgen::ExtendedKeyUsagePurpose::ClientAuth;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;
use tercel::access::grant;
use tercel_gateway::{Config, Tokens};
use tercel_testkit::process::until;

use crate::common::{Got, World, head, request};
use crate::https::Papers;

/// A key of an issuer.
enum Signer {
    Ec(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
}

impl Signer {
    fn ec() -> Signer {
        let random = SystemRandom::new();
        let made = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        Signer::Ec(
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, made.as_ref(), &random).unwrap(),
        )
    }

    fn ed() -> Signer {
        let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Signer::Ed(Ed25519KeyPair::from_pkcs8(made.as_ref()).unwrap())
    }

    fn algorithm(&self) -> &'static str {
        match self {
            Signer::Ec(_) => "ES256",
            Signer::Ed(_) => "EdDSA",
        }
    }

    /// The public key, as an entry of a set of keys.
    fn public(&self, id: &str) -> Value {
        match self {
            Signer::Ec(key) => {
                let (x, y) = key.public_key().as_ref()[1..].split_at(32);
                json!({"kty": "EC", "crv": "P-256", "kid": id, "x": BASE64.encode(x), "y": BASE64.encode(y)})
            }
            Signer::Ed(key) => {
                let x = BASE64.encode(key.public_key().as_ref());
                json!({"kty": "OKP", "crv": "Ed25519", "kid": id, "use": "sig", "x": x})
            }
        }
    }

    fn sign(&self, header: &Value, claims: &Value) -> String {
        let part = |of: &Value| BASE64.encode(of.to_string());
        let message = format!("{}.{}", part(header), part(claims));
        let signature = match self {
            Signer::Ec(key) => {
                let signed = key.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
                BASE64.encode(signed.as_ref())
            }
            Signer::Ed(key) => BASE64.encode(key.sign(message.as_bytes()).as_ref()),
        };
        format!("{message}.{signature}")
    }

    /// A token for so many seconds.
    fn token(&self, subject: &str, seconds: f64) -> String {
        self.sign(&json!({"alg": self.algorithm(), "kid": "a"}), &claims(subject, seconds))
    }
}

fn claims(subject: &str, seconds: f64) -> Value {
    json!({"iss": ISSUER, "sub": subject, "aud": ["other", "tercel"], "exp": now() + seconds})
}

fn now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64()
}

const ISSUER: &str = "https://login.example.org/";

/// A gateway that knows callers by tokens of one issuer.
struct Bearers {
    dir: TempDir,
    world: World,
}

impl Bearers {
    fn new(keys: &[Value]) -> Bearers {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Some(issuers(dir.path(), keys));
        let origins = vec!["https://app.example.org".to_string()];
        let world = World::at_socket(|config| Config { tokens, origins, ..config });
        let own = format!("uid:{}", rustix::process::getuid().as_raw());
        for (who, role) in [(own.as_str(), "speak-for"), ("token:corp/ann", "read")] {
            let servers = world.server.addresses()[0].clone().into();
            grant(&servers, None, &who.parse().unwrap(), &role.parse().unwrap()).unwrap();
        }
        Bearers { dir, world }
    }

    fn get(&self, path: &str, token: &str) -> Got {
        request(self.world.at(), "GET", path, &[("Authorization", &format!("Bearer {token}"))], "")
    }

    fn status(&self, token: &str) -> u16 {
        self.get("/v1/roots", token).status
    }
}

/// The issuer of these keys, as files of a directory.
fn issuers(dir: &Path, keys: &[Value]) -> Tokens {
    put_keys(dir, keys);
    let issuer = json!({
        "name": "corp", "issuer": ISSUER, "audience": "tercel", "algorithms": ["ES256", "EdDSA", "RS256"], "keys": "keys.json"
    });
    let file = dir.join("issuers.json");
    std::fs::write(&file, json!({ "issuers": [issuer] }).to_string()).unwrap();
    Tokens::open(&file).unwrap()
}

fn put_keys(dir: &Path, keys: &[Value]) {
    std::fs::write(dir.join("new.json"), json!({ "keys": keys }).to_string()).unwrap();
    std::fs::rename(dir.join("new.json"), dir.join("keys.json")).unwrap();
}

#[test]
fn bearers_have_rights_of_their_own() {
    for signer in [Signer::ec(), Signer::ed()] {
        let bearers = Bearers::new(&[signer.public("a")]);
        let got = bearers.get("/v1/objects/purse", &signer.token("ann", 60.0));
        assert_eq!(got.status, 200, "{got:?}");
        let got = bearers.get("/v1/objects/purse", &signer.token("ben", 60.0));
        assert_eq!(got.status, 403, "{got:?}");
        assert!(got.body.contains("token:corp/ben lacks the role"), "{got:?}");
        // A request without a token is told how; the console and health are there.
        let got = bearers.world.get("/v1/roots");
        assert_eq!((got.status, got.header("www-authenticate")), (401, "Bearer"), "{got:?}");
        assert!(got.body.contains("Authorization: Bearer"), "{got:?}");
        for path in ["/", "/v1/health"] {
            assert_eq!(bearers.world.get(path).status, 200, "{path}");
        }
    }
}

#[test]
fn tokens_that_do_not_count_are_refused() {
    let (signer, stranger) = (Signer::ec(), Signer::ec());
    let bearers = Bearers::new(&[signer.public("a"), json!({"kty": "oct", "k": "AAAA"})]);
    let good = json!({"alg": "ES256", "kid": "a"});
    let with = |name: &str, value: Value| {
        let mut claims = claims("ann", 60.0);
        claims[name] = value;
        signer.sign(&good, &claims)
    };
    let unsigned = |alg: &str| {
        let part = |of: &Value| BASE64.encode(of.to_string());
        format!("{}.{}.", part(&json!({ "alg": alg })), part(&claims("ann", 60.0)))
    };
    let refused = [
        ("no signature", unsigned("none")),
        ("an empty one", unsigned("ES256")),
        ("another algorithm", signer.sign(&json!({"alg": "HS256"}), &claims("ann", 60.0))),
        ("of another key", signer.sign(&json!({"alg": "EdDSA", "kid": "a"}), &claims("ann", 60.0))),
        ("another key id", signer.sign(&json!({"alg": "ES256", "kid": "b"}), &claims("ann", 60.0))),
        ("extensions", signer.sign(&json!({"alg": "ES256", "crit": ["exp"]}), &claims("ann", 60.0))),
        ("a stranger's", stranger.token("ann", 60.0)),
        ("over", signer.token("ann", -1.0)),
        ("not yet", with("nbf", json!(now() + 300.0))),
        ("without an end", with("exp", Value::Null)),
        ("an end in words", with("exp", json!("9999999999"))),
        ("another issuer", with("iss", json!("https://else.example"))),
        ("another audience", with("aud", json!("tercel2"))),
        ("no audience", with("aud", json!([]))),
        ("a subject with spaces", with("sub", json!("ann ann"))),
        ("no subject", with("sub", json!(""))),
        ("too long", with("more", json!("m".repeat(9_000)))),
        ("no token", "a.b".into()),
        ("none", String::new()),
    ];
    for (what, token) in refused {
        let got = bearers.get("/v1/roots", &token);
        assert_eq!(got.status, 401, "{what}: {got:?}");
        assert!(got.header("www-authenticate").starts_with("Bearer"), "{what}: {got:?}");
    }
    let good = signer.token("ann", 600.0);
    assert_eq!(bearers.status(&good), 200);
    // No byte may be another one, and none may lack.
    for at in 0..good.len() {
        let mut bytes = good.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'Q' } else { b'A' };
        let flipped = String::from_utf8(bytes).unwrap();
        assert_eq!(bearers.status(&flipped), 401, "byte {at} of {good}");
        assert_eq!(bearers.status(&good[..at]), 401, "{at} bytes of {good}");
    }
}

#[test]
fn rsa_signatures_count_where_they_are_taken() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let openssl = |args: &[&str]| Command::new("openssl").args(args).output();
    if openssl(&["genrsa", "-out", &path("key"), "2048"]).is_err() {
        println!("left out: there is no openssl here, which makes RSA keys");
        return;
    }
    let said = openssl(&["rsa", "-in", &path("key"), "-noout", "-modulus"]).unwrap();
    let text = String::from_utf8(said.stdout).unwrap();
    let digits = text.trim().strip_prefix("Modulus=").unwrap();
    let n: Vec<u8> =
        (0..digits.len()).step_by(2).map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap()).collect();
    let key = json!({"kty": "RSA", "alg": "RS256", "n": BASE64.encode(n), "e": "AQAB"});
    let bearers = Bearers::new(&[key]);
    let part = |of: &Value| BASE64.encode(of.to_string());
    let message = format!("{}.{}", part(&json!({"alg": "RS256"})), part(&claims("ann", 60.0)));
    std::fs::write(path("message"), &message).unwrap();
    let signed = openssl(&["dgst", "-sha256", "-sign", &path("key"), &path("message")]).unwrap();
    assert_eq!(bearers.status(&format!("{message}.{}", BASE64.encode(signed.stdout))), 200);
}

/// The operator has not said that certificates name callers.
#[test]
fn certificates_are_a_door_alone_beside_tokens() {
    let (papers, signer) = (Papers::new(), Signer::ed());
    let dir = tempfile::tempdir().unwrap();
    let tokens = Some(issuers(dir.path(), &[signer.public("a")]));
    let https = Some(papers.https(true));
    let world = World::at_socket(|config| Config { https, tokens, ..config });
    let ask = |token: &str| {
        let caller = papers.sign_uri("tercel://client/ann", ClientAuth);
        let mut stream = papers.connect(world.at(), "localhost", Some(caller));
        let asked = format!("GET /v1/roots HTTP/1.1\r\nHost: localhost\r\n{token}Connection: close\r\n\r\n");
        stream.write_all(asked.as_bytes()).unwrap();
        head(&mut BufReader::new(stream)).expect("an answer").0
    };
    assert_eq!(ask(""), 401);
    assert_eq!(ask(&format!("Authorization: Bearer {}\r\n", signer.token("ann", 60.0))), 200);
}

#[test]
fn new_keys_of_issuers_count_without_a_restart() {
    let (old, new) = (Signer::ed(), Signer::ed());
    let bearers = Bearers::new(&[old.public("a")]);
    assert_eq!(
        (bearers.status(&old.token("ann", 60.0)), bearers.status(&new.token("ann", 60.0))),
        (200, 401)
    );
    // A file that is no set of keys changes nothing.
    std::fs::write(bearers.dir.path().join("keys.json"), "{").unwrap();
    put_keys(bearers.dir.path(), &[new.public("a")]);
    let end = Instant::now() + Duration::from_secs(60);
    while bearers.status(&new.token("ann", 60.0)) != 200 {
        assert!(Instant::now() < end, "the new key does not count");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(bearers.status(&old.token("ann", 60.0)), 401);
}

#[test]
fn events_end_with_the_token() {
    let signer = Signer::ed();
    let bearers = Bearers::new(&[signer.public("a")]);
    let mut stream = TcpStream::connect(bearers.world.at()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let token = signer.token("ann", 2.0);
    let asked =
        format!("GET /v1/watch/purse HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n");
    stream.write_all(asked.as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.starts_with("event: state")));
    // Chunks end with an empty one.
    assert!(lines.any(|line| line == "0"), "the stream goes on");
}

#[test]
fn pages_of_listed_sites_may_ask() {
    let signer = Signer::ed();
    let bearers = Bearers::new(&[signer.public("a")]);
    let at = bearers.world.at();
    let token = format!("Bearer {}", signer.token("ann", 60.0));
    let ask = |method: &str, origin: &str, more: &[(&str, &str)]| {
        let headers = [&[("Origin", origin)], more].concat();
        request(at, method, "/v1/roots", &headers, "")
    };
    let before = [("Access-Control-Request-Method", "GET")];
    let got = ask("OPTIONS", "https://app.example.org", &before);
    assert_eq!(got.status, 204, "{got:?}");
    assert_eq!(got.header("access-control-allow-origin"), "https://app.example.org");
    assert!(got.header("access-control-allow-headers").contains("Authorization"), "{got:?}");
    let got = ask("GET", "https://app.example.org", &[("Authorization", &token)]);
    assert_eq!((got.status, got.header("access-control-allow-origin")), (200, "https://app.example.org"));
    assert_eq!(got.header("vary"), "Origin");
    // The refusal may be read, too.
    let got = ask("GET", "https://app.example.org", &[]);
    assert_eq!((got.status, got.header("access-control-allow-origin")), (401, "https://app.example.org"));
    for other in ["https://app.example.org.evil", "http://app.example.org", "null"] {
        for (method, more) in [("OPTIONS", &before[..]), ("GET", &[("Authorization", &*token)])] {
            let got = ask(method, other, more);
            assert_eq!(
                (got.status, got.header("access-control-allow-origin")),
                (403, ""),
                "{other}: {got:?}"
            );
        }
    }
}

#[test]
fn console_asks_for_token_and_follows() {
    if Command::new("node").arg("--version").output().is_err() {
        println!("left out: there is no node here, which runs the console's script");
        return;
    }
    let signer = Signer::ed();
    let bearers = Bearers::new(&[signer.public("a")]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/console.mjs");
    let at = format!("http://{}", bearers.world.at());
    let said = Command::new("node").args([script, &at, &signer.token("ann", 300.0)]).output().unwrap();
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.status.success(), "{text}{}", String::from_utf8_lossy(&said.stderr));
    let said: Value = serde_json::from_str(&text).unwrap();
    // A token that does not count is asked for again.
    assert_eq!((said["forms"].as_u64(), &said["kept"]), (Some(2), &json!(["token"])), "{said}");
    let shown = said["shown"].as_array().unwrap();
    let purses = shown.iter().filter(|text| text.as_str().is_some_and(|text| text.starts_with("Purse ")));
    assert!(purses.count() >= 2, "{said}");
}

/// A login service that has its keys at a URL; none while it is away.
fn login_service(keys: Arc<Mutex<Option<Value>>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/keys", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            while stream.read_line(&mut String::new()).is_ok_and(|n| n > 2) {}
            let answer = keys.lock().unwrap().as_ref().map(|keys| json!({ "keys": [keys] }).to_string());
            let (status, body) = answer.map_or(("503 Away", String::new()), |body| ("200 OK", body));
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
            let _ = stream.get_mut().write_all((head + &body).as_bytes());
        }
    });
    url
}

#[test]
fn keys_at_a_url_may_come_late() {
    let (signer, keys) = (Signer::ec(), Arc::new(Mutex::new(None)));
    let dir = tempfile::tempdir().unwrap();
    let issuer = |keys: &str| {
        let text = json!({"name": "corp", "issuer": ISSUER, "audience": "tercel", "algorithms": ["ES256"], "keys": keys});
        std::fs::write(dir.path().join("issuers.json"), json!({ "issuers": [text] }).to_string()).unwrap();
        Tokens::open(&dir.path().join("issuers.json"))
    };
    let tokens = Some(issuer(&login_service(keys.clone())).unwrap());
    let world = World::at_socket(|config| Config { tokens, ..config });
    let own = format!("uid:{}", rustix::process::getuid().as_raw());
    let ann = "token:corp/ann";
    for (who, role) in [(own.as_str(), "speak-for"), (ann, "read"), (ann, "operate")] {
        let servers = world.server.addresses()[0].clone().into();
        grant(&servers, None, &who.parse().unwrap(), &role.parse().unwrap()).unwrap();
    }
    let ask = |path: &str| {
        let bearer = format!("Bearer {}", signer.token("ann", 60.0));
        request(world.at(), "GET", path, &[("Authorization", &bearer)], "")
    };
    let get = || ask("/v1/roots");
    let refused = get();
    assert_eq!(refused.status, 401);
    assert!(refused.body.contains("could not be fetched"), "{refused:?}");
    *keys.lock().unwrap() = Some(signer.public("a"));
    // It looks again every ten seconds.
    until(|| (get().status == 200).then_some(()));
    // Another issuer comes while the service is away: the keys that are here still count.
    *keys.lock().unwrap() = None;
    let file = dir.path().join("issuers.json");
    let mut all: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let mut second = all["issuers"][0].clone();
    (second["name"], second["issuer"]) = ("second".into(), "second".into());
    second["keys"] = "http://127.0.0.1:9/none".into();
    all["issuers"].as_array_mut().unwrap().push(second);
    std::fs::write(&file, all.to_string()).unwrap();
    until(|| ask("/metrics").body.contains("gateway_tokens_unfetched 1").then_some(()));
    assert_eq!(get().status, 200);
    let refused = issuer("http://login.example.org/keys").unwrap_err().to_string();
    assert!(refused.contains("name it with https://"), "{refused}");
}

#[test]
fn senseless_issuers_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    put_keys(dir.path(), &[Signer::ec().public("a")]);
    let file = dir.path().join("issuers.json");
    let issuer = |name: &str, algorithms: &[&str], keys: &str| json!({"name": name, "issuer": name, "audience": "a", "algorithms": algorithms, "keys": keys});
    let good = || issuer("corp", &["ES256"], "keys.json");
    for (text, says) in [
        ("{".to_string(), "as issuers"),
        (json!({"issuers": [good()], "more": 1}).to_string(), "unknown field"),
        (json!({"issuers": [issuer("a b", &["ES256"], "keys.json")]}).to_string(), "a name has"),
        (json!({"issuers": [good(), good()]}).to_string(), "twice"),
        (json!({"issuers": [issuer("corp", &[], "keys.json")]}).to_string(), "no algorithms"),
        (json!({"issuers": [issuer("corp", &["none"], "keys.json")]}).to_string(), "none"),
        (json!({"issuers": [issuer("corp", &["EdDSA"], "keys.json")]}).to_string(), "no key"),
        (json!({"issuers": [issuer("corp", &["ES256"], "else.json")]}).to_string(), "else.json"),
    ] {
        std::fs::write(&file, &text).unwrap();
        let said = Tokens::open(&file).unwrap_err().to_string();
        assert!(said.contains(says), "{text}: {said}");
    }
    std::fs::write(&file, json!({"issuers": [good()]}).to_string()).unwrap();
    Tokens::open(&file).unwrap();
}
