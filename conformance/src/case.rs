//! Reads case folders into the model's types, so that a case means the same in the tests of every crate.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use ferry_api::config;
use ferry_api::object::KubeObject;
use ferry_api::wire::{Document, decode_manifest};
use ferry_model::{Event, Settings, Store};

/// The node's name if the configuration doesn't override it.
pub const NODE_NAME: &str = "node-a";

/// A decoded case folder: the configuration and objects of one node's proxy.
pub struct Case {
    /// the folder's name
    pub name: String,
    /// the folder
    pub folder: PathBuf,
    /// config.yaml
    pub settings: Settings,
    /// objects.yaml and node.yaml
    pub store: Store,
    /// the machine's addresses: loopback, and those of the Node
    pub local_addresses: Vec<IpAddr>,
}

impl Case {
    /// All cases, sorted by name.
    pub fn all() -> Vec<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/cases");
        let entries = fs::read_dir(&root).unwrap_or_else(|error| panic!("{}: {error}", root.display()));
        let mut folders: Vec<PathBuf> =
            entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect();
        folders.sort();
        folders.into_iter().map(Self::read).collect()
    }

    fn read(folder: PathBuf) -> Self {
        let config = text(&folder, "config.yaml");
        let config = config.unwrap_or_else(|| panic!("{} has no config.yaml", folder.display()));
        Self::in_folder(&config, folder)
    }

    /// The same objects with another configuration.
    pub fn with_config(&self, config: &str) -> Self {
        Self::in_folder(config, self.folder.clone())
    }

    /// A file of the folder, if it is there.
    pub fn text(&self, file: &str) -> Option<String> {
        text(&self.folder, file)
    }

    fn in_folder(config: &str, folder: PathBuf) -> Self {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let objects = text(&folder, "objects.yaml").unwrap_or_else(|| panic!("case {name} has no objects.yaml"));
        let manifests: Vec<String> = [Some(objects), text(&folder, "node.yaml")].into_iter().flatten().collect();
        Self { folder, ..Self::of(&name, config, &manifests) }
    }

    /// A case without a folder, from a configuration and from manifests with the objects and the Node.
    pub fn of(name: &str, config: &str, manifests: &[String]) -> Self {
        let mut config = config::decode(config).unwrap_or_else(|error| panic!("{name}: {error}")).config;
        config.apply_platform_defaults();
        config.validate().unwrap_or_else(|errors| panic!("{name}: {errors}"));
        let overridden = Some(config.hostname_override.as_str()).filter(|name| !name.is_empty());
        let settings = Settings::from_config(&config, overridden.unwrap_or(NODE_NAME));

        let mut store = Store::new(&settings.node_name).serving_external_ips(settings.external_ips);
        for object in manifests.iter().flat_map(|manifest| objects(name, manifest)) {
            store.apply(Event::Upsert(object));
        }
        let of_node = store.node().map_or(&[][..], |node| &node.addresses);
        let mut local_addresses = vec![IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        local_addresses.extend(of_node.iter().filter_map(|address| address.address.as_ref().ok()));
        Self { name: name.to_owned(), folder: PathBuf::new(), settings, store, local_addresses }
    }
}

fn text(folder: &Path, file: &str) -> Option<String> {
    fs::read_to_string(folder.join(file)).ok()
}

/// Decodes the objects of a manifest.
pub fn objects(case: &str, manifest: &str) -> Vec<KubeObject> {
    let documents = decode_manifest(manifest).complete().unwrap_or_else(|error| panic!("{case}: {error}"));
    let objects = documents.into_iter().map(|document| match document {
        Document::Object(object) => object,
        Document::Ignored { kind } => panic!("{case}: nothing reads a {kind}"),
    });
    objects.collect()
}
