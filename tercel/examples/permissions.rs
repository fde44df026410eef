//! A permission service: users in nested groups, documents with grants, checkers that answer from caches of
//! their own, and a revoker whose word counts at every checker as soon as it is passed on.

use std::sync::mpsc;

use tercel::collections::Map;
use tercel::{Client, Error, List, Object, Record, Ref, Server, Text, Token, Tx};

#[derive(Object)]
struct User {
    groups: List<Ref<Group>>,
}

#[derive(Object)]
struct Group {
    member_of: List<Ref<Group>>,
}

#[derive(Record, Clone, Copy, PartialEq, PartialOrd)]
enum Role {
    Reader,
    Writer,
}

#[derive(Record)]
enum Subject {
    User(Ref<User>),
    Group(Ref<Group>),
}

#[derive(Record)]
struct Grant {
    subject: Subject,
    role: Role,
}

#[derive(Object)]
struct Document {
    grants: List<Grant>,
}

/// The root "service": everything by its name.
#[derive(Object)]
struct Service {
    users: Map<Text, User>,
    groups: Map<Text, Group>,
    documents: Map<Text, Document>,
}

/// All groups that the user is in, directly or through other groups.
fn groups_of(tx: &Tx<'_>, user: Ref<User>) -> Result<Vec<Ref<Group>>, Error> {
    let mut found = tx.get(user)?.groups().references()?;
    let mut next = 0;
    while next < found.len() {
        for group in tx.get(found[next])?.member_of().references()? {
            if !found.contains(&group) {
                found.push(group);
            }
        }
        next += 1;
    }
    Ok(found)
}

fn may(tx: &Tx<'_>, user: &str, document: &str, role: Role) -> Result<bool, Error> {
    let service = tx.get_root::<Service>("service")?;
    let user = service.users().get_ref(tx, user)?.ok_or_else(|| Error::NotFound(user.into()))?;
    let groups = groups_of(tx, user)?;
    let grants = service.documents().get(tx, document)?.grants().to_vec()?;
    let concerns = |subject: &Subject| match subject {
        Subject::User(u) => *u == user,
        Subject::Group(group) => groups.contains(group),
    };
    Ok(grants.iter().any(|grant| grant.role >= role && concerns(&grant.subject)))
}

/// Takes all grants of a group away. Gives the token of the commit: a checker that is shown it has the
/// change.
fn revoke(space: &Client, document: &str, from: &str) -> Result<Token, Error> {
    let tx = space.transaction().begin()?;
    let service = tx.get_root::<Service>("service")?;
    let group = service.groups().get_ref(&tx, from)?;
    let document = service.documents().get(&tx, document)?;
    let mut grants = document.grants().to_vec()?;
    grants.retain(|grant| !matches!(grant.subject, Subject::Group(g) if Some(g) == group));
    document.edit()?.set_grants(grants)?;
    drop((document, service));
    Ok(tx.commit()?.token)
}

fn fill(space: &Client) -> Result<(), Error> {
    space.run(|tx| {
        let all = tx.create(&Group { member_of: List::new() })?;
        let editors = tx.create(&Group { member_of: [all].into() })?;
        let ann = tx.create(&User { groups: [editors].into() })?;
        let bob = tx.create(&User { groups: [all].into() })?;
        let grants = [
            Grant { subject: Subject::Group(all), role: Role::Reader },
            Grant { subject: Subject::Group(editors), role: Role::Writer },
            Grant { subject: Subject::User(bob), role: Role::Writer },
        ];
        let plan = tx.create(&Document { grants: grants.into() })?;
        let (users, groups, documents) = (Map::create(tx)?, Map::create(tx)?, Map::create(tx)?);
        users.insert(tx, "ann", ann)?;
        users.insert(tx, "bob", bob)?;
        groups.insert(tx, "all", all)?;
        groups.insert(tx, "editors", editors)?;
        documents.insert(tx, "plan", plan)?;
        tx.set_root("service", tx.create(&Service { users, groups, documents })?)
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::temp_dir().join(format!("tercel-permissions-{}", std::process::id()));
    let server = Server::builder(&dir).listen("127.0.0.1:0").start()?;
    let revoker = Client::connect(&server.addresses()[0])?;
    fill(&revoker)?;
    std::thread::scope(|scope| {
        let address = &server.addresses()[0];
        let checkers = [Client::connect(address)?, Client::connect(address)?].map(|checker| {
            let (tell, told) = mpsc::channel();
            (tell, scope.spawn(move || check(&checker, &told)))
        });
        let token = revoke(&revoker, "plan", "editors")?;
        for (tell, checker) in checkers {
            tell.send(token)?;
            println!("{}", checker.join().expect("a checker does not panic")?);
        }
        Ok::<(), Box<dyn std::error::Error>>(())
    })?;
    drop(revoker);
    server.stop()?;
    Ok(std::fs::remove_dir_all(&dir)?)
}

/// Checks until it is told of the revocation; from then on the answer is another.
fn check(checker: &Client, told: &mpsc::Receiver<Token>) -> Result<String, Error> {
    let mut checks = 0;
    let token = loop {
        checker.run(|tx| may(tx, "ann", "plan", Role::Writer))?;
        checks += 1;
        if let Ok(token) = told.try_recv() {
            break token;
        }
    };
    let after = checker.transaction().at_least(token);
    assert!(!after.run(|tx| may(tx, "ann", "plan", Role::Writer))?, "the grant is revoked");
    assert!(after.run(|tx| may(tx, "ann", "plan", Role::Reader))?, "through all");
    Ok(format!("checked {checks} times until told: ann may read the plan, and write it no longer"))
}
