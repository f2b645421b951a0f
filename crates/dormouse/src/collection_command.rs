//! `dormouse scope` and `dormouse collection`: what the buckets of a running node are divided into.

use crate::bucket_command::BucketName;
use crate::json_document::{list, name_of, text_of};
use crate::node_client::{Answer, Destruction, NodeArgs, Question, encoded, not_empty};
use crate::quantity::UNKNOWN;
use crate::terminal::{aligned, shown};
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
        #[command(flatten)]
        question: Question,
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
        #[command(flatten)]
        destruction: Destruction,
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
        #[command(flatten)]
        question: Question,
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
        #[command(flatten)]
        destruction: Destruction,
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

impl CollectionOptions {
    fn form(&self) -> Vec<(&'static str, String)> {
        let values = [&self.max_ttl_s, &self.history];
        FIELDS.iter().zip(values).filter_map(|((field, _), value)| Some((*field, value.clone()?))).collect()
    }
}

/// Runs a command about scopes.
pub fn run_scope(command: &ScopeCommand) -> anyhow::Result<()> {
    match command {
        ScopeCommand::List { bucket, question } => question.print(&manifest_path(bucket), scopes)?,
        ScopeCommand::Create { scope, node } => {
            let form = [("name", scope.scope.clone())];
            let answer = node.client()?.send(Method::POST, &manifest_path(&scope.bucket), &form, &[])?;
            done(&format!("scope {} created", scope.shown()), &answer)?;
        }
        ScopeCommand::Delete { scope, destruction } => {
            let what = format!("deletes the scope {}", scope.shown());
            let with = " with its collections and all their documents";
            let client = destruction.confirmed(&what, with, &scope.scope)?;
            done(&format!("scope {} deleted", scope.shown()), &client.delete(&scope.path())?)?;
        }
    }
    Ok(())
}

/// Runs a command about collections.
pub fn run_collection(command: &CollectionCommand) -> anyhow::Result<()> {
    match command {
        CollectionCommand::List { bucket, question } => {
            question.print(&manifest_path(bucket), collections)?
        }
        CollectionCommand::Create { collection, options, node } => {
            let form = [vec![("name", collection.collection.clone())], options.form()].concat();
            let path = format!("{}/collections", collection.scope.path());
            let answer = node.client()?.send(Method::POST, &path, &form, &FIELDS)?;
            done(&format!("collection {} created", collection.shown()), &answer)?;
        }
        CollectionCommand::Edit { collection, options, node } => {
            let form = not_empty(options.form())?;
            let answer = node.client()?.send(Method::PATCH, &collection.path(), &form, &FIELDS)?;
            done(&format!("collection {} changed", collection.shown()), &answer)?;
        }
        CollectionCommand::Delete { collection, destruction } => {
            let what = format!("deletes the collection {}", collection.shown());
            let client = destruction.confirmed(&what, " with all its documents", &collection.collection)?;
            done(&format!("collection {} deleted", collection.shown()), &client.delete(&collection.path())?)?;
        }
    }
    Ok(())
}

/// Clients wait for a manifest by its uid.
fn done(what: &str, answer: &Answer) -> anyhow::Result<()> {
    let document: Value = serde_json::from_str(&answer.body).unwrap_or_default();
    crate::print(&format!("{what}; the manifest's uid is {}\n", shown(text_of(&document, "uid"))))
}

fn manifest_path(bucket: &BucketName) -> String {
    format!("{}/scopes", bucket.path())
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
