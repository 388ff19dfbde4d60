//! A list in pages, each delivered as its bytes arrive.

use std::cmp::Ordering;
use std::time::Instant;

use ferry_api::object::ObjectName;
use ferry_api::wire::stream::{ListDecoder, ListEnd, compare_versions};

use super::failure::{Cause, Failure};
use super::plan::Witness;
use super::reflector::{Reflector, Stop};
use super::resource::Recency;
use crate::client::Verb;

/// Empty pages that may follow each other. Even a server that filters after paging doesn't send many.
const MOST_EMPTY_PAGES: usize = 3;

type Newest = Option<(ObjectName, Box<str>)>;

fn newer(one: Newest, other: Newest) -> Newest {
    match (one, other) {
        (Some(one), Some(other)) => {
            Some(if compare_versions(&one.1, &other.1) == Some(Ordering::Greater) { one } else { other })
        }
        (one, other) => one.or(other),
    }
}

impl Reflector {
    /// All pages.
    pub(super) async fn list(&mut self, recency: &Recency) -> Result<(), Stop> {
        self.outlet.begin();
        let mut path = self.resource.list(recency);
        let mut version = None;
        let mut newest = None;
        let mut empty = 0;
        loop {
            let before = self.outlet.listed();
            let ListEnd { resource_version, continue_token, newest: of_page } = self.page(path).await?;
            newest = newer(newest, of_page);
            // Should the pages be of different moments, then the watch has to begin at the earliest.
            let version = &*version.get_or_insert(resource_version);
            let Some(token) = continue_token.filter(|token| !token.is_empty()) else {
                self.outlet.complete();
                self.outlet.deliver().await?;
                self.listed(version.clone());
                self.plan.witnessed(newest.map(|(name, version)| Witness { name, version: Some(version) }));
                return Ok(());
            };
            empty = if self.outlet.listed() == before { empty + 1 } else { 0 };
            if empty > MOST_EMPTY_PAGES {
                let text = format!("the list has no end: over {MOST_EMPTY_PAGES} empty pages in a row");
                return Err(Failure::new(Cause::Endless, text).into());
            }
            path = self.resource.page(&token);
        }
    }

    /// Asks for the object that was changed last. Nothing of the answer is delivered.
    pub(super) async fn check(&mut self, witness: &Witness, version: &str) -> Result<(), Stop> {
        let (mut body, encoding) = self.open(Verb::List, self.resource.only(&witness.name, version)).await?;
        let mut decoder = ListDecoder::new(self.kind(), encoding);
        let mut items = Vec::new();
        while let Some(bytes) = self.chunk(&mut body, self.timing.list_silence).await? {
            decoder.push(&bytes, &mut items)?;
            if items.len() > 1 {
                let text = "the server has several objects of one name";
                return Err(Failure::new(Cause::Endless, text).into());
            }
        }
        let newest = decoder.finish()?.newest;
        // A selector that isn't understood may bring another one.
        let found = newest.filter(|(name, _)| *name == witness.name).map(|(_, version)| version);
        self.plan.checked(found.as_deref(), Instant::now());
        Ok(())
    }

    async fn page(&mut self, path_and_query: String) -> Result<ListEnd, Stop> {
        let (mut body, encoding) = self.open(Verb::List, path_and_query).await?;
        let mut decoder = ListDecoder::new(self.kind(), encoding);
        let mut items = Vec::new();
        while let Some(bytes) = self.chunk(&mut body, self.timing.list_silence).await? {
            let pushed = decoder.push(&bytes, &mut items);
            items.drain(..).for_each(|item| self.outlet.object(item));
            self.outlet.deliver().await?;
            pushed?;
            self.check_size()?;
        }
        Ok(decoder.finish()?)
    }
}
