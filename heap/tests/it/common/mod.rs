//! A class, a server that never forgets, and the little engine that a heap needs around it.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tercel_heap::*;
use tercel_wire::class::FORWARD;
use tercel_wire::id::{ClassId, Oref, PageId, SpaceId, Stamp};
use tercel_wire::layout::{Layout, Var};
use tercel_wire::page::{Page, PageBuilder};
use tercel_wire::record::*;
use tercel_wire::schema::{Field, Scalar, Schema, Type};

pub const NODE: ClassId = ClassId(16);
/// An older node: a narrower number, and a text that the program does not know.
pub const OLD: ClassId = ClassId(17);
pub const OTHER: ClassId = ClassId(18);

/// The class that tests read and write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub id: u64,
    pub name: Text,
    pub next: Ref<Node>,
    pub kids: List<Ref<Node>>,
}

pub const ID: usize = Node::SCHEMA.offset(0);
pub const NAME: usize = Node::SCHEMA.offset(1);
pub const NEXT: usize = Node::SCHEMA.offset(2);
pub const KIDS: usize = Node::SCHEMA.offset(3);

tercel_heap::typed!(Node);

impl Class for Node {
    const SCHEMA: Schema = Schema {
        name: "Node",
        fields: &[
            Field { name: "id", ty: u64::TYPE },
            Field { name: "name", ty: Text::TYPE },
            Field { name: "next", ty: Type::Ref("Node") },
            Field { name: "kids", ty: Type::List(&Type::Ref("Node")) },
        ],
    };

    fn encode(&self, e: &mut Encoder<'_>) {
        self.id.put(e, ID);
        self.name.put(e, NAME);
        self.next.put(e, NEXT);
        self.kids.put(e, KIDS);
    }
}

pub const OLD_SCHEMA: Schema = Schema {
    name: "Node",
    fields: &[
        Field { name: "secret", ty: Type::Text },
        Field { name: "id", ty: Type::Scalar(Scalar::U32) },
        Field { name: "name", ty: Type::Text },
        Field { name: "next", ty: Type::Ref("Node") },
        Field { name: "kids", ty: Type::List(&Type::Ref("Node")) },
    ],
};

/// Another type, which no node is.
#[derive(Debug)]
pub struct Other;

tercel_heap::typed!(Other);

impl Class for Other {
    const SCHEMA: Schema = Schema { name: "Other", fields: &[Field { name: "n", ty: u32::TYPE }] };

    fn encode(&self, e: &mut Encoder<'_>) {
        7u32.put(e, 0);
    }
}

pub fn oref(page: u32, slot: u16) -> Oref {
    Oref::new(PageId::new(page).unwrap(), slot).unwrap()
}

impl Node {
    pub fn new(id: u64, name: &str, next: Oref, kids: &[Oref]) -> Node {
        Node {
            id,
            name: name.into(),
            next: Ref::new(next),
            kids: kids.iter().map(|&o| Ref::new(o)).collect(),
        }
    }

    pub fn object(&self) -> Vec<u8> {
        let mut no = NoSpill;
        let mut e = Encoder::new(Node::SCHEMA.size(), &mut no);
        self.encode(&mut e);
        e.finish(NODE).unwrap()
    }

    pub fn old_object(&self, secret: &str) -> Vec<u8> {
        let mut no = NoSpill;
        let mut e = Encoder::new(OLD_SCHEMA.size(), &mut no);
        Text::from(secret).put(&mut e, OLD_SCHEMA.offset(0));
        (self.id as u32).put(&mut e, OLD_SCHEMA.offset(1));
        self.name.put(&mut e, OLD_SCHEMA.offset(2));
        self.next.put(&mut e, OLD_SCHEMA.offset(3));
        self.kids.put(&mut e, OLD_SCHEMA.offset(4));
        e.finish(OLD).unwrap()
    }

    /// The object that a view shows, references unswizzled.
    pub fn read(v: &View<'_, Node>) -> Node {
        let kids = match v.var(KIDS) {
            Var::Here { at, len } => (0..len).map(|i| Ref::new(v.word(at + 4 * i).0)).collect(),
            other => panic!("{other:?}"),
        };
        Node { id: v.fixed(ID), name: v.text_at(NAME).unwrap().into(), next: Ref::new(v.word(NEXT).0), kids }
    }
}

/// The form in which the server keeps an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    Plain,
    Old,
    /// In its home slot stands a forward to this place.
    Moved(Oref),
    /// The place of an object that moved.
    Away,
}

/// Every version of every object.
#[derive(Default)]
pub struct Server {
    pub versions: BTreeMap<Oref, Vec<(Stamp, Node)>>,
    pub kept: BTreeMap<Oref, Kept>,
    pub now: Stamp,
}

impl Server {
    pub fn put(&mut self, o: Oref, kept: Kept, node: Node) {
        self.versions.entry(o).or_default().push((self.now, node));
        self.kept.insert(o, kept);
    }

    /// The object as it was at a stamp.
    pub fn at(&self, o: Oref, s: Stamp) -> &Node {
        &self.versions[&o].iter().rev().find(|(at, _)| *at <= s).unwrap().1
    }

    /// The page as it is now.
    pub fn page(&self, page: PageId) -> Vec<u8> {
        let mut b = PageBuilder::new(Vec::new(), page, SpaceId(1));
        let mut objects: BTreeMap<u16, Vec<u8>> = BTreeMap::new();
        for (o, kept) in &self.kept {
            let node = self.at(*o, self.now);
            match kept {
                Kept::Plain if o.page() == page => objects.insert(o.slot(), node.object()),
                Kept::Old if o.page() == page => objects.insert(o.slot(), node.old_object("hidden")),
                Kept::Moved(to) => {
                    if o.page() == page {
                        let mut forward = vec![0; 8];
                        forward[..2].copy_from_slice(&FORWARD.0.to_le_bytes());
                        forward[4..].copy_from_slice(&to.raw().to_le_bytes());
                        objects.insert(o.slot(), forward);
                    }
                    if to.page() == page { objects.insert(to.slot(), node.object()) } else { None }
                }
                _ => None,
            };
        }
        for (slot, object) in objects {
            assert!(b.push(slot, &object), "the test's page is full");
        }
        b.finish(self.now)
    }
}

/// A heap with its classes, and the server it fetches from.
pub struct World {
    pub server: Server,
    pub reader: Reader,
    pub writer: Writer,
    pub fetches: Vec<PageId>,
    /// Called before every resolve, to check that nothing is amiss in between.
    pub verify_each: bool,
}

pub fn defined(writer: &mut Writer) {
    writer.define(NODE, Arc::new(Layout::of(&Node::SCHEMA)));
    writer.define(OLD, Arc::new(Layout::of(&OLD_SCHEMA)));
    writer.define(OTHER, Arc::new(Layout::of(&Other::SCHEMA)));
    writer.bind(TypeKey::of::<Node>(), NODE).unwrap();
    writer.bind_converted(TypeKey::of::<Node>(), OLD).unwrap();
    writer.bind(TypeKey::of::<Other>(), OTHER).unwrap();
}

pub fn small(policy: Policy) -> Config {
    Config { budget_bytes: 320 << 10, policy, scopes_max: 4, ..Config::default() }
}

/// Why a read did not give a view.
#[derive(Debug, PartialEq)]
pub enum Stop {
    Doomed,
    Full,
}

impl World {
    pub fn new(config: Config) -> World {
        World::with(config, Box::new(SeqCst))
    }

    pub fn with(config: Config, fence: Box<dyn Fence>) -> World {
        let memory = Boxed::new(arena_bytes(&config).unwrap());
        let (reader, mut writer) = heap(config, Box::new(memory), fence).unwrap();
        defined(&mut writer);
        World { server: Server::default(), reader, writer, fetches: vec![], verify_each: false }
    }

    /// Commits new versions and applies the invalidations.
    pub fn commit(&mut self, changes: &[(Oref, Node)]) {
        self.server.now = self.server.now.next();
        for (o, node) in changes {
            let kept = self.server.kept[o];
            self.server.put(*o, kept, node.clone());
        }
        for (o, _) in changes {
            self.writer.flag(*o);
            if let Kept::Moved(to) = self.server.kept[o] {
                self.writer.flag(to);
            }
        }
        self.writer.advance(self.server.now);
    }

    /// Fetches and installs a page as it is now.
    pub fn fetch(&mut self, page: PageId) -> Result<(), Stop> {
        self.writer.reserve().map_err(|_| Stop::Full)?;
        let bytes = self.server.page(page);
        self.writer.advance(self.server.now);
        self.fetches.push(page);
        match self.writer.install(&Page::parse(&bytes, page).unwrap(), self.server.now, &[]) {
            Ok(()) => Ok(()),
            Err(InstallError::Full(_)) => Err(Stop::Full),
            Err(e) => panic!("{e}"),
        }
    }

    /// Reads by reference.
    pub fn get<'s>(&mut self, scope: &'s Scope, o: Oref) -> Result<View<'s, Node>, Stop> {
        self.get_hinted(scope, o, &mut 0)
    }

    /// Reads by reference, beginning with a hint that may be old.
    pub fn get_hinted<'s>(
        &mut self,
        scope: &'s Scope,
        o: Oref,
        hint: &mut u32,
    ) -> Result<View<'s, Node>, Stop> {
        for _ in 0..50 {
            match scope.get_clean(Ref::<Node>::with_hint(o, *hint)) {
                Lookup::Hit(v) => return Ok(v),
                Lookup::Null => panic!("{o} is not null"),
                Lookup::Slow => {}
            }
            self.recheck(scope)?;
            let r = self.writer.lookup(scope, o, Stamp::MAX, TypeKey::of::<Node>());
            *hint = self.resolved(r)?;
        }
        panic!("no way to {o}");
    }

    /// Reads along a reference.
    pub fn follow<'s>(
        &mut self,
        scope: &'s Scope,
        v: &View<'s, Node>,
        at: usize,
    ) -> Result<Option<View<'s, Node>>, Stop> {
        for _ in 0..50 {
            match scope.follow_clean(&v.ref_view(at)) {
                Lookup::Hit(v) => return Ok(Some(v)),
                Lookup::Null => return Ok(None),
                Lookup::Slow => {}
            }
            self.recheck(scope)?;
            let r = self.writer.resolve(scope, &v.ref_view(at), TypeKey::of::<Node>());
            self.resolved(r)?;
        }
        panic!("no way along {at}");
    }

    fn recheck(&mut self, scope: &Scope) -> Result<(), Stop> {
        if self.verify_each {
            self.writer.verify().unwrap();
        }
        if self.writer.watermark() != scope.snapshot() {
            self.writer.recheck(scope).map_err(|Doomed| Stop::Doomed)?;
        }
        Ok(())
    }

    fn resolved(&mut self, r: Resolved) -> Result<u32, Stop> {
        match r {
            Resolved::Ready { hint } => Ok(hint),
            Resolved::Miss { page } | Resolved::Stale { page } => self.fetch(page).map(|()| 0),
            Resolved::Full(_) => Err(Stop::Full),
            other => panic!("{other:?}"),
        }
    }

    pub fn read_set(&mut self, scope: &Scope) -> BTreeSet<Oref> {
        let mut out = vec![];
        self.writer.read_set(scope, &mut out);
        let set: BTreeSet<Oref> = out.iter().copied().collect();
        assert_eq!(set.len(), out.len(), "each reference once");
        set
    }
}
