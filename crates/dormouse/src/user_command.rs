//! `dormouse user` and `dormouse group`: who may do what on a running node. `docs/users.md` has the roles.

use crate::config::Problem;
use crate::json_document::{list, name_of, strings, text_of};
use crate::node_client::{Destruction, NodeArgs, NodeClient, Question, encoded, not_empty, password_in};
use crate::quantity::UNKNOWN;
use crate::terminal::{aligned, ask_password, shown};
use anyhow::{bail, ensure};
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use serde_json::Value;
use std::path::PathBuf;
use ureq::http::Method;

const USERS: &str = "/settings/rbac/users/local";
const GROUPS: &str = "/settings/rbac/groups";
const ROLES: &str = "/settings/rbac/roles";
const NOT_FOUND: u16 = 404;

/// What to do with users.
#[derive(Debug, Subcommand)]
pub enum UserCommand {
    /// List the users with their roles and groups.
    #[command(after_help = "Examples:
  dormouse user list --user ada --password-file password
  dormouse user list --json | jq -r '.[].id'")]
    List {
        #[command(flatten)]
        question: Question,
    },
    /// Show a user: each role, and whether it comes from a group.
    #[command(after_help = "Example:
  dormouse user show bob --user ada --password-file password")]
    Show {
        #[command(flatten)]
        name: UserName,
        #[command(flatten)]
        question: Question,
    },
    /// Create a user.
    #[command(after_help = "Examples:
  dormouse user create bob --roles 'data_reader[orders],data_writer[orders:eu]' --user ada --password-file password
  dormouse user create app --groups readers --new-password-file app.password --user ada --password-file password

\"dormouse user roles\" lists the roles there are.")]
    Create {
        #[command(flatten)]
        name: UserName,
        #[command(flatten)]
        options: UserOptions,
        #[command(flatten)]
        password: NewPassword,
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Change a user's full name, roles or groups: what is given replaces what was there.
    #[command(after_help = "Examples:
  dormouse user edit bob --roles 'data_reader[orders]' --user ada --password-file password
  dormouse user edit bob --groups '' --user ada --password-file password        of no group from now on")]
    Edit {
        #[command(flatten)]
        name: UserName,
        #[command(flatten)]
        options: UserOptions,
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Change a password: without a name, that of the user who logs in.
    #[command(after_help = "Examples:
  dormouse user password --user bob                                       asks for the old one and the new one
  dormouse user password bob --user ada --password-file password          a new one for somebody else")]
    Password {
        /// The user [default: the one who logs in]
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: Option<String>,
        #[command(flatten)]
        password: NewPassword,
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Delete a user; its connections stay, without any right.
    #[command(
        visible_alias = "drop",
        after_help = "Example:
  dormouse user delete bob --yes --user ada --password-file password"
    )]
    Delete {
        #[command(flatten)]
        name: UserName,
        #[command(flatten)]
        destruction: Destruction,
    },
    /// List the roles that users and groups can have, with what they are for.
    #[command(after_help = "Example:
  dormouse user roles")]
    Roles {
        #[command(flatten)]
        question: Question,
    },
}

/// What to do with groups.
#[derive(Debug, Subcommand)]
pub enum GroupCommand {
    /// List the groups with their roles.
    #[command(after_help = "Example:
  dormouse group list --user ada --password-file password")]
    List {
        #[command(flatten)]
        question: Question,
    },
    /// Show a group.
    #[command(after_help = "Example:
  dormouse group show readers --user ada --password-file password")]
    Show {
        #[command(flatten)]
        name: GroupName,
        #[command(flatten)]
        question: Question,
    },
    /// Create a group.
    #[command(after_help = "Example:
  dormouse group create readers --roles 'data_reader[orders]' --user ada --password-file password")]
    Create {
        #[command(flatten)]
        name: GroupName,
        #[command(flatten)]
        options: GroupOptions,
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Change a group's roles or description: what is given replaces what was there.
    #[command(after_help = "Example:
  dormouse group edit readers --roles 'data_reader[orders],data_reader[carts]' --user ada --password-file password")]
    Edit {
        #[command(flatten)]
        name: GroupName,
        #[command(flatten)]
        options: GroupOptions,
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Delete a group; its members lose its roles.
    #[command(
        visible_alias = "drop",
        after_help = "Example:
  dormouse group delete readers --yes --user ada --password-file password"
    )]
    Delete {
        #[command(flatten)]
        name: GroupName,
        #[command(flatten)]
        destruction: Destruction,
    },
}

/// The name of a user.
#[derive(Debug, Args)]
pub struct UserName {
    /// The user's name
    #[arg(value_name = "USER", value_parser = NonEmptyStringValueParser::new())]
    name: String,
}

/// The name of a group.
#[derive(Debug, Args)]
pub struct GroupName {
    /// The group's name
    #[arg(value_name = "GROUP", value_parser = NonEmptyStringValueParser::new())]
    name: String,
}

/// What a user has besides a password.
#[derive(Debug, Args)]
pub struct UserOptions {
    /// Full name
    #[arg(long, value_name = "NAME")]
    full_name: Option<String>,
    /// Roles, separated by commas: ROLE or ROLE[BUCKET:SCOPE:COLLECTION]
    #[arg(long, value_name = "ROLES")]
    roles: Option<String>,
    /// Groups, separated by commas
    #[arg(long, value_name = "GROUPS")]
    groups: Option<String>,
}

/// What a group has.
#[derive(Debug, Args)]
pub struct GroupOptions {
    /// Roles, separated by commas: ROLE or ROLE[BUCKET:SCOPE:COLLECTION]
    #[arg(long, value_name = "ROLES")]
    roles: Option<String>,
    /// What it is for
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
}

/// A password to be set.
#[derive(Debug, Args)]
pub struct NewPassword {
    /// File whose first line is the new password; without it, it is asked for twice
    #[arg(long, value_name = "FILE")]
    new_password_file: Option<PathBuf>,
}

impl NewPassword {
    fn read(&self, user: &str) -> anyhow::Result<String> {
        const OPTION: &str = "--new-password-file";
        if let Some(file) = &self.new_password_file {
            return password_in(OPTION, file);
        }
        let password = ask_password(&format!("New password of {user}"), OPTION)?;
        ensure!(ask_password("Once more", OPTION)? == password, "nothing was done: the two passwords differ");
        Ok(password)
    }
}

/// The form fields of options.
const FIELDS: [(&str, &str); 5] = [
    ("name", "--full-name"),
    ("roles", "--roles"),
    ("groups", "--groups"),
    ("description", "--description"),
    ("password", "the new password"),
];

fn given<const N: usize>(fields: [(&'static str, &Option<String>); N]) -> Vec<(&'static str, String)> {
    fields.into_iter().filter_map(|(field, value)| Some((field, value.clone()?))).collect()
}

impl UserOptions {
    fn form(&self) -> Vec<(&'static str, String)> {
        given([("name", &self.full_name), ("roles", &self.roles), ("groups", &self.groups)])
    }
}

impl GroupOptions {
    fn form(&self) -> Vec<(&'static str, String)> {
        given([("roles", &self.roles), ("description", &self.description)])
    }
}

fn path(kind: &str, name: &str) -> String {
    format!("{kind}/{}", encoded(name))
}

/// PUT replaces: a name that is taken by mistake must not lose its roles.
fn check_is_new(client: &NodeClient, path: &str, what: &str, name: &str) -> anyhow::Result<()> {
    if client.get(path)?.status == NOT_FOUND {
        return Ok(());
    }
    // Another answer than the document is a refusal, in the node's words.
    client.json(path)?;
    bail!("there is a {what} {:?} already: dormouse {what} edit changes it", shown(name))
}

/// Runs a command about users.
pub fn run(command: &UserCommand) -> anyhow::Result<()> {
    match command {
        UserCommand::List { question } => question.print(USERS, users)?,
        UserCommand::Show { name, question } => question.print(&path(USERS, &name.name), user)?,
        UserCommand::Roles { question } => question.print(ROLES, roles)?,
        UserCommand::Create { name, options, password, node } => {
            let (client, path) = (node.client()?, path(USERS, &name.name));
            check_is_new(&client, &path, "user", &name.name)?;
            let mut form = options.form();
            form.push(("password", password.read(&name.name)?));
            client.send(Method::PUT, &path, &form, &FIELDS)?;
            done("user", &name.name, "created")?;
        }
        UserCommand::Edit { name, options, node } => {
            let form = not_empty(options.form())?;
            node.client()?.send(Method::PATCH, &path(USERS, &name.name), &form, &FIELDS)?;
            done("user", &name.name, "changed")?;
        }
        UserCommand::Password { name, password, node } => {
            let client = node.client()?;
            let Some(name) = name.as_deref().or(client.user()) else {
                return Err(Problem::new("whose password? Give --user, or a name").into());
            };
            let form = [("password", password.read(name)?)];
            if client.user() == Some(name) {
                client.send(Method::POST, "/controller/changePassword", &form, &FIELDS)?;
            } else {
                client.send(Method::PATCH, &path(USERS, name), &form, &FIELDS)?;
            }
            done("password of", name, "changed")?;
        }
        UserCommand::Delete { name, destruction } => delete(destruction, USERS, "user", &name.name)?,
    }
    Ok(())
}

/// Runs a command about groups.
pub fn run_group(command: &GroupCommand) -> anyhow::Result<()> {
    match command {
        GroupCommand::List { question } => question.print(GROUPS, groups)?,
        GroupCommand::Show { name, question } => question.print(&path(GROUPS, &name.name), group)?,
        GroupCommand::Create { name, options, node } => {
            let (client, path) = (node.client()?, path(GROUPS, &name.name));
            check_is_new(&client, &path, "group", &name.name)?;
            client.send(Method::PUT, &path, &options.form(), &FIELDS)?;
            done("group", &name.name, "created")?;
        }
        GroupCommand::Edit { name, options, node } => {
            let form = not_empty(options.form())?;
            node.client()?.send(Method::PATCH, &path(GROUPS, &name.name), &form, &FIELDS)?;
            done("group", &name.name, "changed")?;
        }
        GroupCommand::Delete { name, destruction } => delete(destruction, GROUPS, "group", &name.name)?,
    }
    Ok(())
}

fn delete(destruction: &Destruction, kind: &str, what: &str, name: &str) -> anyhow::Result<()> {
    let client = destruction.confirmed(&format!("deletes the {what} {}", shown(name)), "", name)?;
    client.delete(&path(kind, name))?;
    done(what, name, "deleted")
}

fn done(what: &str, name: &str, how: &str) -> anyhow::Result<()> {
    crate::print(&format!("{what} {} {how}\n", shown(name)))
}

/// A role as options take it: `ROLE[BUCKET:SCOPE:COLLECTION]`; what stands for all is left out.
fn role(document: &Value) -> String {
    let parts = ["bucket_name", "scope_name", "collection_name"].map(|part| text_of(document, part));
    let named: Vec<&str> = parts.into_iter().take_while(|part| !part.is_empty() && *part != "*").collect();
    let name = text_of(document, "role");
    match (parts, named.is_empty()) {
        (["", ..], _) => name.to_owned(),
        (_, true) => format!("{name}[*]"),
        _ => format!("{name}[{}]", named.join(":")),
    }
}

fn roles_of(document: &Value) -> String {
    shown(&list(document.get("roles")).map(role).collect::<Vec<_>>().join(","))
}

fn or_unknown(text: &str) -> String {
    if text.is_empty() { UNKNOWN.to_owned() } else { shown(text) }
}

fn users(document: &Value) -> String {
    let mut rows = vec![["user", "full name", "groups", "roles"].map(str::to_owned)];
    for user in list(Some(document)) {
        rows.push([
            shown(text_of(user, "id")),
            or_unknown(&name_of(user)),
            or_unknown(&strings(user.get("groups")).join(",")),
            or_unknown(&roles_of(user)),
        ]);
    }
    aligned(&rows, 4)
}

fn user(document: &Value) -> String {
    let mut rows = vec![
        ["user".to_owned(), shown(text_of(document, "id"))],
        ["full name".to_owned(), or_unknown(&name_of(document))],
        ["groups".to_owned(), or_unknown(&strings(document.get("groups")).join(","))],
        ["password changed".to_owned(), or_unknown(text_of(document, "password_change_date"))],
    ];
    for one in list(document.get("roles")) {
        let origins = list(one.get("origins")).map(|origin| match text_of(origin, "type") {
            "group" => format!("group {}", name_of(origin)),
            _ => "its own".to_owned(),
        });
        rows.push([
            "role".to_owned(),
            shown(&format!("{}: {}", role(one), origins.collect::<Vec<_>>().join(", "))),
        ]);
    }
    aligned(&rows, 2)
}

fn groups(document: &Value) -> String {
    let mut rows = vec![["group", "description", "roles"].map(str::to_owned)];
    for group in list(Some(document)) {
        rows.push([
            shown(text_of(group, "id")),
            or_unknown(text_of(group, "description")),
            or_unknown(&roles_of(group)),
        ]);
    }
    aligned(&rows, 3)
}

fn group(document: &Value) -> String {
    let rows = [
        ["group".to_owned(), shown(text_of(document, "id"))],
        ["description".to_owned(), or_unknown(text_of(document, "description"))],
        ["roles".to_owned(), or_unknown(&roles_of(document))],
    ];
    aligned(&rows, 2)
}

/// Each role as it can be given, with what it is for.
fn roles(document: &Value) -> String {
    let mut rows = vec![["role", "what it allows"].map(str::to_owned)];
    for kind in list(Some(document)) {
        let parts = [("bucket_name", "BUCKET"), ("scope_name", "SCOPE"), ("collection_name", "COLLECTION")];
        let named: Vec<&str> =
            parts.into_iter().filter(|(part, _)| kind.get(*part).is_some()).map(|(_, name)| name).collect();
        let place = if named.is_empty() { String::new() } else { format!("[{}]", named.join(":")) };
        rows.push([shown(&format!("{}{place}", text_of(kind, "role"))), shown(text_of(kind, "desc"))]);
    }
    aligned(&rows, 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn roles_are_shown_as_options_take_them() {
        let role = |bucket: &str, scope: &str, collection: &str| {
            role(
                &json!({"role": "r", "bucket_name": bucket, "scope_name": scope, "collection_name": collection}),
            )
        };
        assert_eq!(super::role(&json!({ "role": "admin" })), "admin");
        assert_eq!(
            [role("*", "*", "*"), role("b", "*", "*"), role("b", "s", "*"), role("b", "s", "c")],
            ["r[*]", "r[b]", "r[b:s]", "r[b:s:c]"]
        );
        assert_eq!(super::role(&json!({ "role": "r", "bucket_name": "b" })), "r[b]");
    }
}
