//! `dormouse scope` and `dormouse collection`: what the buckets of a running node are divided into.

use crate::bucket_command::{BucketName, pretty};
use crate::json_document::{list, name_of, text_of};
use crate::node_client::{Answer, NodeArgs, encoded, not_empty};
use crate::quantity::UNKNOWN;
use crate::terminal::{aligned, confirm, shown};
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use serde_json::Value;
use ureq::http::Method;

/// What to do with scopes.
#[derive(Debug, Subcommand)]
pub enum ScopeCommand {
    /// List the scopes of a bucket, with the number of their collections.
    #[command(after_help = "Example:
  dormouse scope list orders")]
    List {
        #[command(flatten)]
        bucket: BucketName,
        /// Print JSON: the bucket's manifest
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Create a scope.
    #[command(after_help = "Example:
  dormouse scope create orders eu --user ada --password-file password")]
    Create {
        #[command(flatten)]
        scope: ScopeName,
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Delete a scope, with its collections and all their documents.
    #[command(
        visible_alias = "drop",
        after_help = "Example:
  dormouse scope delete orders eu --yes --user ada --password-file password"
    )]
    Delete {
        #[command(flatten)]
        scope: ScopeName,
        /// Do not ask for the scope's name
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        node: NodeArgs,
    },
}

/// What to do with collections.
#[derive(Debug, Subcommand)]
pub enum CollectionCommand {
    /// List the collections of a bucket.
    #[command(after_help = "Example:
  dormouse collection list orders")]
    List {
        #[command(flatten)]
        bucket: BucketName,
        /// Print JSON: the bucket's manifest
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Create a collection.
    #[command(after_help = "Examples:
  dormouse collection create orders eu invoices --user ada --password-file password
  dormouse collection create orders _default carts --max-ttl-s 86400 --user ada")]
    Create {
        #[command(flatten)]
        collection: CollectionName,
        #[command(flatten)]
        options: CollectionOptions,
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Change settings of a collection.
    #[command(after_help = "Example:
  dormouse collection edit orders _default carts --max-ttl-s -1 --user ada --password-file password")]
    Edit {
        #[command(flatten)]
        collection: CollectionName,
        #[command(flatten)]
        options: CollectionOptions,
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Delete a collection with all its documents.
    #[command(
        visible_alias = "drop",
        after_help = "Example:
  dormouse collection delete orders eu invoices --yes --user ada --password-file password"
    )]
    Delete {
        #[command(flatten)]
        collection: CollectionName,
        /// Do not ask for the collection's name
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        node: NodeArgs,
    },
}

/// A scope of a bucket.
#[derive(Debug, Args)]
pub struct ScopeName {
    #[command(flatten)]
    bucket: BucketName,
    /// The scope's name
    #[arg(value_name = "SCOPE", value_parser = NonEmptyStringValueParser::new())]
    scope: String,
}

/// A collection of a scope.
#[derive(Debug, Args)]
pub struct CollectionName {
    #[command(flatten)]
    scope: ScopeName,
    /// The collection's name
    #[arg(value_name = "COLLECTION", value_parser = NonEmptyStringValueParser::new())]
    collection: String,
}

/// Settings of a collection.
#[derive(Debug, Args)]
#[command(infer_long_args = true)]
pub struct CollectionOptions {
    /// Maximum expiry of its documents, seconds; 0: the bucket's, -1: none
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    max_ttl_s: Option<String>,
    /// Stored and shown: no old versions are kept
    #[arg(long, value_name = "true|false")]
    history: Option<String>,
}

impl ScopeName {
    fn path(&self) -> String {
        format!("{}/scopes/{}", self.bucket.path(), encoded(&self.scope))
    }

    fn shown(&self) -> String {
        format!("{} of the bucket {}", shown(&self.scope), shown(&self.bucket.bucket))
    }
}

impl CollectionName {
    fn path(&self) -> String {
        format!("{}/collections/{}", self.scope.path(), encoded(&self.collection))
    }

    fn shown(&self) -> String {
        format!(
            "{}.{} of the bucket {}",
            shown(&self.scope.scope),
            shown(&self.collection),
            shown(&self.scope.bucket.bucket)
        )
    }
}

/// The form fields of options.
const FIELDS: [(&str, &str); 2] = [("maxTTL", "--max-ttl-s"), ("history", "--history")];

fn option_of(field: &str) -> Option<String> {
    FIELDS.iter().find(|(known, _)| *known == field).map(|(_, option)| (*option).to_owned())
}

impl CollectionOptions {
    fn form(&self) -> Vec<(&'static str, String)> {
        let values = [&self.max_ttl_s, &self.history];
        FIELDS.iter().zip(values).filter_map(|((field, _), value)| Some((*field, value.clone()?))).collect()
    }
}

/// Runs a command about scopes.
pub fn run_scope(command: &ScopeCommand) -> anyhow::Result<()> {
    match command {
        ScopeCommand::List { bucket, json, node } => print_manifest(bucket, node, *json, scopes)?,
        ScopeCommand::Create { scope, node } => {
            let form = [("name", scope.scope.clone())];
            let path = format!("{}/scopes", scope.bucket.path());
            let answer = node.client()?.send(Method::POST, &path, &form, |_| None)?;
            done(&format!("scope {} created", scope.shown()), &answer);
        }
        ScopeCommand::Delete { scope, yes, node } => {
            let client = node.client()?;
            let what = format!(
                "deletes the scope {} at {} with its collections and all their documents",
                scope.shown(),
                client.base()
            );
            confirm(&what, &scope.scope, *yes)?;
            done(&format!("scope {} deleted", scope.shown()), &client.delete(&scope.path())?);
        }
    }
    Ok(())
}

/// Runs a command about collections.
pub fn run_collection(command: &CollectionCommand) -> anyhow::Result<()> {
    match command {
        CollectionCommand::List { bucket, json, node } => print_manifest(bucket, node, *json, collections)?,
        CollectionCommand::Create { collection, options, node } => {
            let form = [vec![("name", collection.collection.clone())], options.form()].concat();
            let path = format!("{}/collections", collection.scope.path());
            let answer = node.client()?.send(Method::POST, &path, &form, option_of)?;
            done(&format!("collection {} created", collection.shown()), &answer);
        }
        CollectionCommand::Edit { collection, options, node } => {
            let form = not_empty(options.form())?;
            let answer = node.client()?.send(Method::PATCH, &collection.path(), &form, option_of)?;
            done(&format!("collection {} changed", collection.shown()), &answer);
        }
        CollectionCommand::Delete { collection, yes, node } => {
            let client = node.client()?;
            let what = format!(
                "deletes the collection {} at {} with all its documents",
                collection.shown(),
                client.base()
            );
            confirm(&what, &collection.collection, *yes)?;
            done(&format!("collection {} deleted", collection.shown()), &client.delete(&collection.path())?);
        }
    }
    Ok(())
}

/// Clients wait for a manifest by its uid.
fn done(what: &str, answer: &Answer) {
    let document: Value = serde_json::from_str(&answer.body).unwrap_or_default();
    crate::print(&format!("{what}; the manifest's uid is {}\n", shown(text_of(&document, "uid"))));
}

fn print_manifest(
    bucket: &BucketName,
    node: &NodeArgs,
    is_json: bool,
    table: fn(&Value) -> String,
) -> anyhow::Result<()> {
    let document = node.client()?.json(&format!("{}/scopes", bucket.path()))?;
    crate::print(&if is_json { pretty(&document)? } else { table(&document) });
    Ok(())
}

fn scopes(manifest: &Value) -> String {
    let mut rows = vec![["scope", "id", "collections"].map(str::to_owned)];
    for scope in list(manifest.get("scopes")) {
        let collections = list(scope.get("collections")).count().to_string();
        rows.push([shown(&name_of(scope)), shown(text_of(scope, "uid")), collections]);
    }
    aligned(&rows, 1)
}

fn collections(manifest: &Value) -> String {
    let mut rows = vec![["scope", "collection", "id", "max-ttl-s", "history"].map(str::to_owned)];
    for scope in list(manifest.get("scopes")) {
        for collection in list(scope.get("collections")) {
            let max_ttl_s = match collection.get("maxTTL").and_then(Value::as_i64) {
                None | Some(0) => "the bucket's".to_owned(),
                Some(..=-1) => "none".to_owned(),
                Some(seconds) => seconds.to_string(),
            };
            rows.push([
                shown(&name_of(scope)),
                shown(&name_of(collection)),
                shown(text_of(collection, "uid")),
                max_ttl_s,
                collection.get("history").map_or(UNKNOWN.to_owned(), Value::to_string),
            ]);
        }
    }
    aligned(&rows, 2)
}
