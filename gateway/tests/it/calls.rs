//! Methods and procedures, and keys under which they are executed once.

use serde_json::json;
use tercel_gateway::{Config, Gateway};

use crate::common::{AccountCalls as _, Clock, ClockCalls as _, Got, World, request};

fn post_under(world: &World, key: &str, path: &str, body: &str) -> Got {
    request(world.at(), "POST", path, &[("Idempotency-Key", key)], body)
}

#[test]
fn methods_and_procedures_are_called() {
    let world = World::new();
    let paid = world.post("/v1/objects/purse/pay", "[300]");
    assert_eq!((paid.status, paid.json()), (200, json!({ "gives": 700 })), "{paid:?}");
    let path = format!("/v1/objects/{}/Account.pay", world.purse.oref());
    assert_eq!(world.post(&path, r#"{"cents": 100}"#).json(), json!({ "gives": 600 }));
    assert_eq!(world.post("/v1/objects/purse/balance", "").json(), json!({ "gives": 600 }));
    assert_eq!(world.post("/v1/services/Clock/add", "[2, 3]").json(), json!({ "gives": 5 }));
    let short = world.post("/v1/objects/purse/pay", "[601]");
    assert_eq!((short.status, &short.json()["error"]), (422, &json!("Overdrawn")), "{short:?}");
    assert_eq!(short.json()["fails"], json!({ "short": 1 }));
    // What a call has written is read after it.
    assert_eq!(world.get("/v1/objects/purse").json()["fields"]["cents"], 600);
    for (path, body, status, words) in [
        ("/v1/objects/purse/pay", "[\"much\"]", 400, "the arguments of `pay`"),
        ("/v1/objects/purse/pay", "[1", 400, "no JSON"),
        ("/v1/objects/purse/lend", "[]", 404, "has no method `lend`"),
        ("/v1/objects/nothing/pay", "[1]", 404, "the root `nothing`"),
        ("/v1/services/Calendar/add", "[]", 404, "no service `Calendar`"),
        ("/v1/services/purse/pay", "[1]", 404, "no service `purse`"),
    ] {
        let got = world.post(path, body);
        assert_eq!(got.status, status, "{path} {body}: {got:?}");
        assert!(got.json()["error"].as_str().unwrap().contains(words), "{path}: {got:?}");
    }
    let services = world.get("/v1/services").json();
    assert!(services["interfaces"].as_array().unwrap().iter().any(|i| i["name"] == "Clock"), "{services}");
}

#[test]
fn key_executes_once_at_several_gateways() {
    let world = World::new();
    let at = world.server.addresses()[0].clone();
    let other = Gateway::start(Config::new(at.into(), "127.0.0.1:0")).unwrap();
    let pay = |at, key: &str, body: &str| {
        request(at, "POST", "/v1/objects/purse/pay", &[("Idempotency-Key", key)], body)
    };
    let first = pay(world.at(), "k1", "[300]");
    assert_eq!(first.json(), json!({ "gives": 700 }), "{first:?}");
    for at in [world.at(), other.address(), world.at()] {
        let again = pay(at, "k1", "[300]");
        assert_eq!((again.status, again.body), (200, first.body.clone()));
    }
    let different = pay(other.address(), "k1", "[301]");
    assert_eq!(different.status, 422, "{different:?}");
    // A method that fails by its own decision has no effect, and leaves the key free for the same request.
    let short = pay(world.at(), "k2", "[701]");
    assert_eq!((short.status, &short.json()["error"]), (422, &json!("Overdrawn")), "{short:?}");
    world.client.run(|tx| tx.edit(world.purse)?.set_cents(5_000)).unwrap();
    for at in [other.address(), world.at()] {
        assert_eq!(pay(at, "k2", "[701]").json(), json!({ "gives": 4_299 }));
    }
    // Programs and gateways find the same effect.
    let paid = world.client.handle(world.purse).with_key("k2").pay(701);
    assert!(matches!(paid, Ok(4_299)), "{paid:?}");
    assert_eq!(world.post("/v1/objects/purse/balance", "").json(), json!({ "gives": 4_299 }));
    // The answer of a procedure that is not `#[once]` is kept by the gateway.
    let ticked = post_under(&world, "k3", "/v1/services/Clock/tick", "");
    assert_eq!(ticked.json(), json!({ "gives": 1 }));
    assert_eq!(post_under(&world, "k3", "/v1/services/Clock/tick", "").body, ticked.body);
    assert_eq!(world.post("/v1/services/Clock/tick", "").json(), json!({ "gives": 2 }));
    // What was not begun takes no key.
    assert_eq!(post_under(&world, "k4", "/v1/objects/purse/pay", "[\"a\"]").status, 400);
    assert_eq!(pay(world.at(), "k4", "[1]").json(), json!({ "gives": 4_298 }));
    assert_eq!(pay(world.at(), &"k".repeat(129), "[1]").status, 400);
}

#[test]
fn keyed_procedure_keeps_its_answer_with_its_effect() {
    let world = World::new();
    let at = world.server.addresses()[0].clone();
    let other = Gateway::start(Config::new(at.into(), "127.0.0.1:0")).unwrap();
    let take = |at, key: &str, body: &str| {
        request(at, "POST", "/v1/services/Clock/take", &[("Idempotency-Key", key)], body)
    };
    let first = take(world.at(), "k1", "[300]");
    assert_eq!((first.status, first.json()), (200, json!({ "gives": 700 })), "{first:?}");
    assert_eq!(take(other.address(), "k1", "[300]").body, first.body);
    // Programs and pages find the same effect.
    assert_eq!(world.client.service::<dyn Clock>().with_key("k1").take(300).unwrap(), 700);
    assert_eq!(take(other.address(), "k2", "[100]").json(), json!({ "gives": 600 }));
    let different = take(other.address(), "k1", "[301]");
    assert!(different.status == 422 && different.body.contains("another request"), "{different:?}");
    let keyless = world.post("/v1/services/Clock/take", "[1]");
    assert!(keyless.status == 400 && keyless.body.contains("Idempotency-Key"), "{keyless:?}");
    let described = world.get("/openapi.json").json();
    let takes = &described["paths"]["/v1/services/Clock/take"]["post"]["parameters"][0];
    assert_eq!((&takes["name"], &takes["required"]), (&json!("Idempotency-Key"), &json!(true)));
    assert_eq!(world.client.run(|tx| Ok(tx.get(world.purse)?.cents())).unwrap(), 600);
    // The gateway has kept nothing of its own.
    let roots = world.get("/v1/roots").json();
    assert!(!roots.to_string().contains("gateway.keys"), "{roots}");
}

#[test]
fn answer_stays_although_target_is_gone() {
    let world = World::new();
    let first = post_under(&world, "k", "/v1/objects/purse/pay", "[1]");
    assert_eq!(first.status, 200, "{first:?}");
    world.client.run(|tx| tx.remove_root("purse")).unwrap();
    let again = post_under(&world, "k", "/v1/objects/purse/pay", "[1]");
    assert_eq!((again.status, &again.body), (200, &first.body));
    let named = post_under(&world, "k", "/v1/objects/purse/Account.pay", "[1]");
    assert_eq!((named.status, &named.body), (200, &first.body));
    for (key, path, body) in [
        ("other", "/v1/objects/purse/pay", "[1]"),
        ("k", "/v1/objects/purse/pay", "[2]"),
        ("k", "/v1/objects/purse/balance", ""),
        ("k", "/v1/objects/purse/Other.pay", "[1]"),
        ("k", "/v1/objects/4000000.1/pay", "[1]"),
    ] {
        assert_eq!(post_under(&world, key, path, body).status, 404, "{key} {path} {body}");
    }
    // Nobody reads by its name what is kept for others.
    for path in ["/v1/objects/gateway.keys", "/v1/watch/gateway.keys"] {
        assert_eq!(world.get(path).status, 403, "{path}");
    }
}

#[test]
fn keys_that_cannot_be_read_execute_nothing() {
    let world = World::new();
    for keys in [&["schlüssel"][..], &[""], &["a", "a"], &["a b"], &["a\tb"]] {
        let keys: Vec<_> = keys.iter().map(|key| ("Idempotency-Key", *key)).collect();
        let got = request(world.at(), "POST", "/v1/services/Clock/tick", &keys, "");
        assert_eq!(got.status, 400, "{keys:?}: {got:?}");
    }
    assert_eq!(world.post("/v1/services/Clock/tick", "").json(), json!({ "gives": 1 }));
}

#[test]
fn kept_answers_are_refused_by_reference() {
    let world = World::new();
    let secret = "secret-note ".repeat(1_000);
    let first =
        post_under(&world, "alice-secret-key", "/v1/services/Clock/echo", &json!([secret]).to_string());
    assert_eq!(first.json()["gives"], secret, "{}", first.status);
    let mut kept = 0;
    for (page, slot) in (1..PAGES).flat_map(|page| (0..SLOTS).map(move |slot| (page, slot))) {
        let got = world.get(&format!("/v1/objects/{page}.{slot}"));
        assert!(!got.body.contains("secret-"), "{page}.{slot}: {}", got.body);
        kept += usize::from(got.status == 403);
        if got.status == 403 {
            assert_eq!(world.get(&format!("/v1/watch/{page}.{slot}")).status, 403);
        }
    }
    // The keys, the key, and the parts of its answer.
    assert!(kept > 2 + secret.len() / 1_024, "{kept}");
    let again =
        post_under(&world, "alice-secret-key", "/v1/services/Clock/echo", &json!([secret]).to_string());
    assert_eq!(again.body, first.body);
    assert!(!world.get("/openapi.json").body.contains("gateway.Key"));
}

/// More than the space has.
const PAGES: u32 = 12;
const SLOTS: u32 = 48;

#[test]
fn bodies_that_would_be_misread_are_refused() {
    let world = World::new();
    let twice = world.post("/v1/objects/purse/pay", r#"{"cents": 1, "cents": 2}"#);
    assert_eq!(twice.status, 400, "{twice:?}");
    assert!(twice.json()["error"].as_str().unwrap().contains("`cents` is given twice"), "{twice:?}");
    for (coding, status) in [("gzip", 415), ("identity, br", 415), ("Identity", 200)] {
        let headers = [("Content-Encoding", coding)];
        let got = request(world.at(), "POST", "/v1/services/Clock/add", &headers, "[1, 2]");
        assert_eq!(got.status, status, "{got:?}");
        let named = coding.split(", ").last().unwrap();
        assert!(status == 200 || got.body.contains(&format!("`{named}`")), "{got:?}");
    }
    assert_eq!(world.post("/v1/objects/purse/balance", "").json(), json!({ "gives": 1_000 }));
}

#[test]
fn repetitions_at_once_execute_once() {
    let world = World::new();
    let at = world.at();
    let threads: Vec<_> = (0..8)
        .map(|_| {
            std::thread::spawn(move || {
                let path = "/v1/objects/purse/pay";
                request(at, "POST", path, &[("Idempotency-Key", "same")], "[1]")
            })
        })
        .collect();
    let answers: Vec<Got> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    assert!(answers.iter().any(|got| got.status == 200), "{answers:?}");
    for got in &answers {
        match got.status {
            200 => assert_eq!(got.json(), json!({ "gives": 999 })),
            409 => assert_eq!((&got.json()["executed"], got.header("retry-after")), (&json!("unknown"), "1")),
            _ => panic!("{got:?}"),
        }
    }
    assert_eq!(world.post("/v1/objects/purse/balance", "").json(), json!({ "gives": 999 }));
}
