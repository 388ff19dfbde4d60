//! Paged lists, decoded and delivered as their bytes arrive; and checks of single objects.

use std::time::Instant;

use ferry_api::object::ObjectName;
use ferry_api::wire::stream::{ListDecoder, ListEnd};

use super::failure::{FailureCause, RequestFailure};
use super::history::Witnesses;
use super::reflector::{Reflector, Stop};
use super::resource::Recency;
use ferry_client::Verb;

/// Most consecutive empty pages. Even a server that filters after paging doesn't send many.
const MOST_EMPTY_PAGES: usize = 3;

impl Reflector {
    /// Lists all pages.
    pub(super) async fn list(&mut self, recency: &Recency) -> Result<(), Stop> {
        self.outlet.begin();
        let mut path = self.resource.list(recency);
        let mut version = None;
        let mut witnesses = Witnesses::default();
        let mut empty = 0;
        loop {
            let before = self.outlet.listed();
            let ListEnd { resource_version, continue_token, newest } = self.page(path).await?;
            if let Some((name, version)) = newest {
                witnesses.listed(&name, &version);
            }
            // If the pages have different versions, the watch has to begin at the earliest.
            let version = &*version.get_or_insert(resource_version);
            let Some(token) = continue_token.filter(|token| !token.is_empty()) else {
                self.outlet.complete();
                self.outlet.deliver().await?;
                self.listed(version.clone(), witnesses);
                return Ok(());
            };
            empty = if self.outlet.listed() == before { empty + 1 } else { 0 };
            if empty > MOST_EMPTY_PAGES {
                let text = format!("endless list: over {MOST_EMPTY_PAGES} empty pages in a row");
                return Err(RequestFailure::new(FailureCause::Endless, text).into());
            }
            path = self.resource.page(&token);
        }
    }

    /// Reads one object's version. The object isn't delivered.
    pub(super) async fn check(&mut self, name: Option<ObjectName>, version: &str) -> Result<(), Stop> {
        let name = name.unwrap_or_else(|| self.resource.common());
        let (mut body, encoding) = self.open(Verb::List, self.resource.only(&name, version)).await?;
        let mut decoder = ListDecoder::new(self.kind(), encoding);
        let mut items = Vec::new();
        while let Some(bytes) = self.chunk(&mut body, self.timing.list_silence).await? {
            decoder.push(&bytes, &mut items)?;
            if items.len() > 1 {
                let text = "the server returned several objects of one name";
                return Err(RequestFailure::new(FailureCause::Endless, text).into());
            }
        }
        let newest = decoder.finish()?.newest;
        // A server that ignores the selector may return another object.
        let found = newest.filter(|(of, _)| *of == name).map(|(_, version)| version);
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
