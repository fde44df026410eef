//! Objects, roots and the state of the servers.

use serde_json::json;
use tercel::Server;
use tercel_testkit::process::until;

use crate::common::{World, request};

#[test]
fn object_is_read_by_root_and_reference() {
    let world = World::new();
    let by_root = world.get("/v1/objects/purse");
    assert_eq!(by_root.status, 200, "{by_root:?}");
    let object = by_root.json();
    assert_eq!(object["ref"], world.purse.oref().to_string());
    assert_eq!((&object["class"], &object["fields"]["cents"]), (&json!("Purse"), &json!(1_000)));
    assert_eq!(object["fields"]["owner"], "Ann");
    let by_reference = world.get(&format!("/v1/objects/{}", world.purse.oref()));
    assert_eq!((by_reference.json(), by_reference.header("etag")), (object, by_root.header("etag")));
    assert_eq!(world.get("/v1/objects/%70urse").json()["class"], "Purse");
    let roots = world.get("/v1/roots").json();
    assert_eq!(roots, json!({ "roots": [{ "name": "purse", "ref": world.purse.oref().to_string() }] }));
}

#[test]
fn tag_holds_until_object_changes() {
    let world = World::new();
    let first = world.get("/v1/objects/purse");
    let tag = first.header("etag").to_string();
    let again = |query: &str| {
        let path = format!("/v1/objects/purse{query}");
        request(world.at(), "GET", &path, &[("If-None-Match", &tag)], "")
    };
    let same = again("");
    assert_eq!((same.status, same.body.as_str(), same.header("etag")), (304, "", tag.as_str()));
    // A commit that changes something else leaves it.
    world.client.run(|tx| tx.set_root("other", world.purse)).unwrap();
    assert_eq!(again("?fresh=strict").status, 304);
    let token = {
        let tx = world.client.transaction().begin().unwrap();
        tx.edit(world.purse).unwrap().set_cents(7).unwrap();
        tx.commit().unwrap().token
    };
    let changed = again("?fresh=strict");
    assert_eq!((changed.status, &changed.json()["fields"]["cents"]), (200, &json!(7)));
    for query in [format!("?at_least={token}"), "?fresh=bounded:60000".into(), "?fresh=stale".into()] {
        assert_eq!(again(&query).json()["fields"]["cents"], 7, "{query}");
    }
    assert!(changed.header("tercel-token").parse::<tercel::Token>().unwrap().stamp >= token.stamp);
}

#[test]
fn wrong_request_is_told_what_to_do() {
    let world = World::new();
    let no_object = format!("/v1/objects/{}.500", world.purse.oref().page());
    for (path, status, words) in [
        ("/v1/objects/nothing", 404, "the root `nothing` was not found"),
        (no_object.as_str(), 404, "was not found"),
        ("/v1/nothing", 404, "there is nothing at /v1/nothing"),
        ("/v1/objects/purse?fresh=often", 400, "fresh=often"),
        ("/v1/objects/purse?at_least=now", 400, "at_least=now"),
        ("/v1/services/Clock/add", 405, "takes POST"),
    ] {
        let got = world.get(path);
        let body = got.json();
        assert_eq!(got.status, status, "{path}: {got:?}");
        assert!(body["error"].as_str().unwrap().contains(words), "{path}: {body}");
        assert!(!body["next"].as_str().unwrap().is_empty(), "{path}: {body}");
    }
}

#[test]
fn state_of_servers_and_counters_are_told() {
    let world = World::new();
    assert_eq!(world.get("/v1/health").json()["state"], "serving");
    assert!(world.get("/v1/status").json()["commits"].as_u64().unwrap() > 0);
    assert_eq!(world.get("/v1/objects/nothing").status, 404);
    let metrics = world.get("/metrics");
    assert!(metrics.header("content-type").starts_with("application/openmetrics-text"), "{metrics:?}");
    for line in [
        "tercel_gateway_requests_total{route=\"/v1/health\",outcome=\"2xx\"} 1",
        "tercel_gateway_requests_total{route=\"/v1/objects/{object}\",outcome=\"4xx\"} 1",
        "tercel_gateway_request_seconds_count{route=\"/v1/status\"} 1",
        "tercel_disk_full 0",
        "# EOF",
    ] {
        assert!(metrics.body.lines().any(|has| has == line), "{line} is not in:\n{}", metrics.body);
    }
    let accept = [("Accept", "text/plain;version=0.0.4")];
    let text = request(world.at(), "GET", "/metrics", &accept, "");
    assert_eq!(text.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    assert!(text.body.contains("\n# TYPE tercel_commits_total counter\ntercel_commits_total "), "{text:?}");
    assert!(!text.body.contains("# EOF"), "{text:?}");
    let console = world.get("/");
    // It reads numbers as they were sent: `JSON.parse` alone would round them.
    assert!(!console.body.contains(".json()") && console.body.matches("JSON.parse(").count() == 1);
    assert!(console.header("content-security-policy").contains("frame-ancestors 'none'"), "{console:?}");
    assert!(console.header("content-type").starts_with("text/html") && console.body.contains("/v1/roots"));
}

#[test]
fn other_space_at_address_fails_health() {
    let World { gateway, server, client, .. } = World::new();
    let at = server.addresses()[0].to_string();
    drop(client);
    server.stop().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let _other = Server::builder(dir.path()).listen(&at).start().unwrap();
    // The other space serves, and it is the gateway that must be restarted.
    let told = until(|| {
        let got = request(gateway.address(), "GET", "/v1/health", &[], "");
        (got.status == 503 && got.json()["next"] == "restart the gateway").then_some(got)
    });
    assert_eq!(told.header("retry-after"), "1", "{told:?}");
}

#[test]
fn description_names_what_can_be_called() {
    let world = World::new();
    let described = world.get("/openapi.json").json();
    let schemas = &described["components"]["schemas"];
    assert_eq!(schemas["Purse"]["properties"]["friends"]["type"], "array");
    let pay = &described["paths"]["/v1/objects/{object}/Account.pay"]["post"];
    let takes = &pay["requestBody"]["content"]["application/json"]["schema"];
    let cents = &takes["properties"]["cents"];
    assert_eq!((&cents["type"], &cents["format"]), (&json!("integer"), &json!("int64")));
    assert_eq!((&takes["required"], &pay["requestBody"]["required"]), (&json!(["cents"]), &json!(true)));
    let key = &pay["parameters"][0]["schema"];
    assert_eq!((&key["maxLength"], &key["pattern"]), (&json!(128), &json!("^[!-~]+$")));
    let add = &described["paths"]["/v1/services/Clock/add"]["post"]["requestBody"]["content"];
    let a = &add["application/json"]["schema"]["properties"]["a"];
    assert_eq!((&a["format"], &a["x-unsigned"]), (&json!("int64"), &json!(true)));
    assert_eq!(a["maximum"], u64::MAX);
    let tick = &described["paths"]["/v1/services/Clock/tick"]["post"]["requestBody"];
    assert_eq!(tick["required"], false);
    let fails = &pay["responses"]["422"]["content"]["application/json"]["schema"];
    assert_eq!(fails["properties"]["fails"]["$ref"], "#/components/schemas/Overdrawn");
    assert!(schemas["Overdrawn"]["properties"]["short"].is_object());
    assert!(described["paths"]["/v1/services/Clock/add"]["post"].is_object());
    // Each schema that is named is there, those of the fields of classes too.
    assert!(schemas["Limit"]["properties"]["cents"].is_object());
    for rest in described.to_string().split("#/components/schemas/").skip(1) {
        let name = rest.split('"').next().unwrap();
        assert!(schemas[name].is_object(), "{name}");
    }
    // Every answer says what is in it.
    for (path, item) in described["paths"].as_object().unwrap() {
        for (_, operation) in item.as_object().unwrap() {
            assert!(operation["responses"]["200"]["content"].is_object(), "{path}");
            assert!(operation["operationId"].is_string(), "{path}");
        }
    }
    let fresh = &described["paths"]["/v1/roots"]["get"]["parameters"][0]["schema"];
    assert!(fresh["pattern"].is_string(), "{fresh}");
    // Each route of the description is there.
    for (path, item) in described["paths"].as_object().unwrap() {
        let path =
            ["{object}", "{table}", "{map}"].iter().fold(path.clone(), |path, of| path.replace(of, "purse"));
        let method = item.as_object().unwrap().keys().next().unwrap().to_uppercase();
        if !path.starts_with("/v1/watch") {
            let got = request(world.at(), &method, &path, &[], "");
            assert!(![404, 405].contains(&got.status), "{method} {path}: {got:?}");
        }
    }
}
