//! Transactions and names of a toy table: one verdict map, one map to listeners, a few chains.

use std::fmt;

use ferry_api::object::{Family, Protocol};
use ferry_kernel::nft::{BaseHook, ElementData, OwnedData};
use ferry_model::FrontendAddr;
use ferry_plane::{Batch, CommitError, Object, Op, Served};

use super::encode::transactions;
use super::*;
use crate::fields::Bytes;
use crate::layout::{Data, KeyPart, Layout};
use crate::read::TableOwner;
use crate::rules::RuleWriter;
use crate::sources::Ranges;
use crate::{Rules, TableRule, names};

names! {
    /// The maps.
    Map {
        /// port → verdict
        Verdicts = "verdicts",
        /// port → listener
        Listeners = "listeners",
    }
}

names! {
    /// The chains.
    Chain {
        /// refuses
        Reject = "reject-chain",
        /// looks up
        Services = "services",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Toy {}

/// An element of a map, by its port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Key(Map, u16);

/// A listener that is open or not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Value {
    Drop,
    Listener(&'static str),
}

impl Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.1)
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " : {self:?}")
    }
}

impl Vocabulary for Toy {
    type Set = Map;
    type Chain = Chain;
    type Element = Key;
    type Value = Value;
    /// the listeners that are open
    type World = Vec<&'static str>;

    const TABLE: &'static str = "toy";
    const COMMENT: &'static str = "toy layout 1";
    const MODULES: &'static str = "none";
    const SERVING: &'static [Map] = &[];

    fn set_of(element: &Key) -> Map {
        element.0
    }

    fn layout(set: Map) -> Layout {
        match set {
            Map::Verdicts => Layout::new(&[KeyPart::Port], Data::Verdict),
            Map::Listeners => Layout::new(&[KeyPart::Port], Data::Endpoint),
        }
    }

    fn hook(_: Chain) -> Option<BaseHook> {
        None
    }

    fn rank(chain: Chain) -> u8 {
        match chain {
            Chain::Reject => 2,
            Chain::Services => 4,
        }
    }

    fn restricted(_: Family, _: SourcesId) -> Rules {
        Rules([].into())
    }

    fn probes(family: Family) -> Vec<(Chain, Rules)> {
        let rules = |rule| (Chain::Services, Rules([rule].into()));
        vec![rules(RuleWriter::new(family).reject()), rules(RuleWriter::new(family).drop_it())]
    }

    fn key_bytes(open: &Self::World, element: &Key) -> Option<Bytes> {
        // The listener of port 9 is its key, too.
        (element.1 != 9 || open.contains(&"nine")).then(|| Bytes::new().port(element.1).unpadded(2))
    }

    fn key(_: Option<&Self::World>, _: Map, _: Family, _: &[u8]) -> Option<Key> {
        None
    }

    fn with_data(open: &Self::World, value: &Value, use_it: &mut dyn FnMut(ElementData<'_>)) -> bool {
        match value {
            Value::Drop => use_it(ElementData::None),
            Value::Listener(name) if open.contains(name) => use_it(ElementData::Value(&[0; 8])),
            Value::Listener(_) => return false,
        }
        true
    }

    fn value(_: &Self::World, _: Map, _: Family, _: &OwnedData) -> Value {
        Value::Drop
    }

    fn served(element: &Key) -> Option<Served> {
        Some(Served::Frontend(Protocol::Tcp, FrontendAddr::NodePort(element.1)))
    }

    fn leads_to(value: &Value) -> Option<ChainName<Self>> {
        (*value == Value::Drop).then_some(ChainName::Fixed(Chain::Reject))
    }
}

impl Object for TableObject<Toy> {
    type Key = TableKey<Toy>;
    type Shared = u8;

    fn key(&self) -> TableKey<Toy> {
        TableObject::key(self)
    }

    fn rank(&self) -> u8 {
        TableObject::rank(self)
    }
}

impl InTable<Toy> for TableObject<Toy> {
    fn in_table(&self) -> Option<&Self> {
        Some(self)
    }

    fn of_table(object: Self) -> Self {
        object
    }

    fn key_in_table(key: &TableKey<Toy>) -> Option<&TableKey<Toy>> {
        Some(key)
    }

    fn key_of_table(key: TableKey<Toy>) -> TableKey<Toy> {
        key
    }
}

fn ranges() -> TableObject<Toy> {
    let ranges = Ranges::new(&["10.0.0.0/8".parse().unwrap()]);
    TableObject::Ranges(ranges.id(), ranges)
}

fn restricted() -> TableObject<Toy> {
    let TableObject::Ranges(id, _) = ranges() else { unreachable!() };
    chain(ChainName::Restricted(id))
}

fn chain(name: ChainName<Toy>) -> TableObject<Toy> {
    TableObject::Chain(name, Rules([TableRule { exprs: Vec::new(), text: String::new() }].into()))
}

fn verdict(port: u16) -> TableObject<Toy> {
    TableObject::Element(Key(Map::Verdicts, port), Value::Drop)
}

fn listener(port: u16, name: &'static str) -> TableObject<Toy> {
    TableObject::Element(Key(Map::Listeners, port), Value::Listener(name))
}

/// The operations of each transaction in their order, with these listeners open.
fn order(open: &[&'static str], objects: &Batch<TableObject<Toy>>) -> Result<Vec<Vec<(Op, usize)>>, CommitError> {
    let encoded = transactions::<Toy, _>((Family::V4, &open.to_vec()), objects)?;
    let operations = |marks: &crate::marks::Marks| marks.as_slice().iter().map(|mark| (mark.op, mark.index)).collect();
    Ok(encoded.iter().map(|encoded| operations(&encoded.marks)).collect())
}

#[test]
fn restrictions_are_made_ahead_and_deleted_behind() {
    let (create, delete) = (Op::Create, Op::Delete);
    let created = Batch { create: vec![ranges(), restricted(), verdict(1)], ..Batch::default() };
    let wanted = [vec![(create, 0), (create, 1), (create, 1)], vec![(create, 2)]];
    assert_eq!(order(&[], &created).unwrap(), wanted);
    let deleted = Batch { delete: vec![verdict(1), restricted(), ranges()], ..Batch::default() };
    assert_eq!(order(&[], &deleted).unwrap(), [vec![(delete, 0)], vec![(delete, 1), (delete, 2)]]);
}

/// The kernel notifies of each element, which costs it more than the element itself.
#[test]
fn a_set_of_ranges_counts_by_its_elements() {
    let networks: Vec<_> = (0..200).map(|third| format!("10.0.{third}.8/32").parse().unwrap()).collect();
    let ranges = Ranges::new(&networks);
    let wide = TableObject::Ranges(ranges.id(), ranges);
    let batch = Batch { create: vec![verdict(1)], replace: vec![wide], delete: vec![verdict(2), verdict(3)] };
    // Each range begins and ends with an element.
    assert_eq!(layer::elements_of(&batch), 1 + 2 * 200 + 2);
}

#[test]
fn elements_that_change_are_replaced_in_one_transaction() {
    let replace = vec![chain(ChainName::Fixed(Chain::Services)), verdict(80)];
    let objects = Batch { create: vec![verdict(1)], replace, delete: vec![verdict(2)] };
    let wanted = [(Op::Delete, 0), (Op::Replace, 1), (Op::Replace, 0), (Op::Replace, 1), (Op::Create, 0)];
    assert_eq!(order(&[], &objects).unwrap(), [wanted]);
}

#[test]
fn a_table_comes_and_goes_as_a_whole() {
    let table = || TableObject::Table(TableOwner::Ours);
    let delete = Batch { delete: vec![verdict(1), table()], ..Batch::default() };
    assert_eq!(order(&[], &delete).unwrap(), [[(Op::Delete, 1)]]);
    let objects = Batch { create: vec![ranges()], replace: vec![table()], delete: vec![] };
    assert_eq!(order(&[], &objects).unwrap(), [[(Op::Replace, 0), (Op::Create, 0)]]);
    assert!(order(&[], &Batch::default()).unwrap().is_empty());
}

#[test]
fn an_element_of_a_listener_that_is_not_open_is_refused_and_nothing_is_sent() {
    let objects = Batch {
        create: vec![verdict(1), listener(2, "two"), listener(3, "three")],
        replace: vec![listener(4, "four")],
        delete: vec![],
    };
    let refused = |open: &[&'static str]| match order(open, &objects) {
        Ok(_) => Vec::new(),
        Err(CommitError::Refused(refusals)) => refusals.into_iter().map(|(op, index, _)| (op, index)).collect(),
        Err(other) => panic!("{other}"),
    };
    assert_eq!(refused(&["two", "three", "four"]), []);
    assert_eq!(refused(&["two"]), [(Op::Create, 2), (Op::Replace, 0)]);
}

#[test]
fn an_element_that_goes_without_known_bytes_is_drift() {
    let objects = Batch { delete: vec![verdict(9)], ..Batch::default() };
    assert!(order(&["nine"], &objects).is_ok());
    let drifted = order(&[], &objects).unwrap_err();
    assert!(matches!(&drifted, CommitError::Drifted { object } if object == "element verdicts { 9 }"), "{drifted}");
}

#[test]
fn every_name_is_parsed_as_it_is_printed() {
    let id = SourcesId::of_digest(&[7; 32]);
    for set in Map::ALL.iter().copied().map(SetName::<Toy>::Fixed).chain([SetName::Sources(id)]) {
        assert_eq!(SetName::parse(&set.to_string()), Some(set));
    }
    for chain in Chain::ALL.iter().copied().map(ChainName::<Toy>::Fixed).chain([ChainName::Restricted(id)]) {
        assert_eq!(ChainName::parse(&chain.to_string()), Some(chain));
    }
    assert_eq!((SetName::<Toy>::parse("sources-7"), SetName::<Toy>::parse("cluster-ips")), (None, None));
    assert_eq!((ChainName::<Toy>::parse("restricted-"), ChainName::<Toy>::parse("input")), (None, None));
}

#[test]
fn the_probe_has_the_rules_of_each_variant_of_a_chain() {
    let rules = probe::rules::<Toy>(Family::V6);
    let texts: Vec<String> = rules.iter().map(|(chain, rules)| format!("{chain}{rules}")).collect();
    let restricted = format!("restricted-{}", SourcesId::of_digest(&[]));
    assert_eq!(texts, ["services reject;", "services drop;", restricted.as_str()]);
}

fn services(rules: impl IntoIterator<Item = TableRule>) -> TableObject<Toy> {
    TableObject::Chain(ChainName::Fixed(Chain::Services), Rules(rules.into_iter().collect()))
}

#[test]
fn a_table_is_printed_sorted_and_each_object_once() {
    let rules = services([RuleWriter::new(Family::V4).goto("reject-chain")]);
    let objects = [
        listener(2, "two"),
        rules.clone(),
        TableObject::Set(SetName::Fixed(Map::Verdicts)),
        ranges(),
        TableObject::Table(TableOwner::Ours),
        listener(1, "one"),
        rules,
    ];
    let TableObject::Ranges(id, _) = ranges() else { unreachable!() };
    let wanted = format!(
        "table ip toy {{
\tcomment \"toy layout 1\"

\tmap verdicts {{
\t\ttype inet_service : verdict
\t}}

\tmap listeners {{
\t\ttype inet_service : ipv4_addr . inet_service
\t\telements = {{
\t\t\t1 : Listener(\"one\"),
\t\t\t2 : Listener(\"two\")
\t\t}}
\t}}

\tset sources-{id} {{
\t\ttype ipv4_addr
\t\tflags interval
\t\telements = {{
\t\t\t10.0.0.0/8
\t\t}}
\t}}

\tchain services {{
\t\tgoto reject-chain
\t}}
}}
"
    );
    assert_eq!(draw(Family::V4, &objects), wanted);
}

#[test]
fn an_object_refers_to_the_table_and_to_all_that_it_names() {
    let TableObject::Ranges(id, _) = ranges() else { unreachable!() };
    let table = TableKey::<Toy>::Table;
    assert_eq!(refers_to::<Toy>(&TableObject::Table(TableOwner::Ours)), []);
    for set in [TableObject::Set(SetName::<Toy>::Fixed(Map::Verdicts)), ranges()] {
        assert_eq!(refers_to(&set), std::slice::from_ref(&table));
    }
    let rule = || RuleWriter::new(Family::V4);
    let chain = services([
        rule().source_in_set(SetName::<Toy>::Sources(id)).jump("reject-chain"),
        rule().source_in_set("of-others").goto("of-others"),
        rule().goto(ChainName::<Toy>::Restricted(id)),
        rule().drop_it(),
    ]);
    let named = [
        table,
        TableKey::Set(SetName::Sources(id)),
        TableKey::Chain(ChainName::Fixed(Chain::Reject)),
        TableKey::Chain(ChainName::Restricted(id)),
    ];
    assert_eq!(refers_to(&chain), named);
    let set = |map| TableKey::Set(SetName::Fixed(map));
    assert_eq!(refers_to(&listener(1, "one")), [set(Map::Listeners)]);
    let reject = TableKey::Chain(ChainName::Fixed(Chain::Reject));
    assert_eq!(refers_to(&verdict(1)), [set(Map::Verdicts), reject]);
}

#[test]
fn what_is_referred_to_has_the_lower_rank() {
    let ranks = [
        TableObject::Table(TableOwner::Ours),
        TableObject::Set(SetName::Fixed(Map::Verdicts)),
        ranges(),
        chain(ChainName::Fixed(Chain::Reject)),
        restricted(),
        chain(ChainName::Fixed(Chain::Services)),
        verdict(1),
    ]
    .map(|object| object.rank());
    assert_eq!(ranks, [0, 1, 1, 2, 3, 4, ELEMENT_RANK]);
}

#[test]
fn services_share_ranges_and_the_chain_that_checks_them() {
    for object in [ranges(), restricted()] {
        assert_eq!(object.shared_sources(), Some(object.key()));
    }
    for object in [TableObject::Table(TableOwner::Ours), chain(ChainName::Fixed(Chain::Services)), verdict(1)] {
        assert_eq!(object.shared_sources(), None, "{object}");
    }
}

#[test]
fn each_object_is_printed_with_its_content() {
    let TableObject::Ranges(id, _) = ranges() else { unreachable!() };
    let texts = [
        TableObject::Table(TableOwner::Ours),
        TableObject::Table(TableOwner::Foreign),
        TableObject::Set(SetName::Fixed(Map::Verdicts)),
        ranges(),
        services([RuleWriter::new(Family::V4).drop_it()]),
        listener(1, "one"),
    ]
    .map(|object: TableObject<Toy>| object.to_string());
    let sources = format!("set sources-{id} {{ 10.0.0.0/8 }}");
    let wanted = [
        "table toy { comment \"toy layout 1\" }",
        "table toy { foreign }",
        "set verdicts",
        sources.as_str(),
        "chain services { drop; }",
        "element listeners { 1 : Listener(\"one\") }",
    ];
    assert_eq!(texts, wanted);
}

#[test]
fn a_set_of_source_ranges_holds_intervals() {
    let TableObject::Ranges(id, _) = ranges() else { unreachable!() };
    let layout = SetName::<Toy>::Sources(id).layout();
    assert_eq!((layout.interval, layout.key, layout.data), (true, [KeyPart::Address].as_slice(), Data::None));
    assert_eq!(SetName::<Toy>::Fixed(Map::Listeners).layout(), Toy::layout(Map::Listeners));
}

#[test]
fn elements_serve_the_same_elsewhere_unless_a_mode_differs() {
    let key = Key(Map::Verdicts, 80);
    assert_eq!(Toy::served_elsewhere(&key), Toy::served(&key));
    assert!(Toy::served(&key).is_some());
}
