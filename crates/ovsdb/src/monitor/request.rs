//! The `monitor-requests` and `monitor-cond-change-requests` of clients.

use super::filter::Filter;
use super::plan::{Spec, TablePlan};
use super::{Select, Version};
use crate::error::Error;
use crate::member_order;
use crate::members::{Kinds, Members};
use crate::schema::{ColumnRef, DatabaseSchema, TableSchema};
use crate::server::DatabaseId;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use wire::json::{Kind, Value};

/// Parses the `monitor-requests`, an object.
pub(crate) fn parse_requests(
    database: DatabaseId,
    schema: &DatabaseSchema,
    version: Version,
    requests: Value<'_>,
) -> Result<Spec, Error> {
    if requests.kind() != Kind::Object {
        return Err(Error::syntax_error(requests, "monitor-requests must be object"));
    }
    let mut tables = Vec::new();
    let mut filters = Filters::default();
    for (name, value) in last_members(requests) {
        let Some((id, table)) = schema.find_table(&name) else { return Err(no_table(&name)) };
        let mut plan = TablePlan::new(id, table);
        if value.kind() == Kind::Array {
            for element in value.elements() {
                let filter = parse_request(&mut plan, table, version, element)?;
                filters.add(tables.len(), filter);
            }
        } else {
            let filter = parse_request(&mut plan, table, version, value)?;
            filters.add(tables.len(), filter);
        }
        tables.push(plan);
    }
    for (place, filter) in filters.into_chosen() {
        if let Some(plan) = tables.get_mut(place) {
            plan.set_filter(filter.map(Arc::new));
        }
    }
    tables.sort_by_key(|plan| plan.table);
    Ok(Spec { database, version, tables: tables.into_iter().map(Arc::new).collect() })
}

/// Determines which of several filters of one table counts.
///
/// COMPAT: the stock server puts them all into a hash table under the table's name, where a later one hides an earlier
/// one, and each growth of the hash table reverses that.
#[derive(Debug, Default)]
struct Filters {
    count: usize,
    /// By table; the one that counts is the last.
    chains: Vec<(usize, Vec<Option<Filter>>)>,
}

impl Filters {
    fn add(&mut self, table: usize, filter: Option<Filter>) {
        match self.chains.last_mut() {
            Some((last, chain)) if *last == table => chain.push(filter),
            _ => self.chains.push((table, vec![filter])),
        }
        self.count += 1;
        // There is one bucket at first, then 4, 8, 16 and so on; the table grows when it has twice as many entries.
        if self.count == 2 || self.count >= 8 && self.count.is_power_of_two() {
            self.chains.iter_mut().for_each(|(_, chain)| chain.reverse());
        }
    }

    fn into_chosen(self) -> impl Iterator<Item = (usize, Option<Filter>)> {
        self.chains.into_iter().filter_map(|(table, mut chain)| Some((table, chain.pop()?)))
    }
}

/// Members in the order in which the stock server visits them; of those with the same name the last.
fn last_members(object: Value<'_>) -> Vec<(Cow<'_, str>, Value<'_>)> {
    let mut members: Vec<(Cow<'_, str>, Value<'_>)> = Vec::new();
    let mut places = HashMap::new();
    for (name, value) in object.members() {
        let place = *places.entry(name.clone()).or_insert(members.len());
        match members.get_mut(place) {
            Some(member) => member.1 = value,
            None => members.push((name, value)),
        }
    }
    let order = member_order::walk(members.iter().map(|(name, _)| &**name));
    order.into_iter().filter_map(|place| members.get(place).cloned()).collect()
}

fn no_table(name: &str) -> Error {
    Error::syntax_error_anywhere(format!("no table named {name}"))
}

/// Parses one `monitor-request`, and returns its filter. The columns of all filters of a table count, though only one
/// of them selects the rows.
fn parse_request(
    plan: &mut TablePlan,
    table: &TableSchema,
    version: Version,
    request: Value<'_>,
) -> Result<Option<Filter>, Error> {
    let mut members = Members::new(request, format!("table {}", table.name));
    let conditions = match version {
        Version::One => None,
        Version::Two | Version::Three => members.optional("where", Kinds::ARRAY),
    };
    let columns = members.optional("columns", Kinds::ARRAY);
    let select = members.optional("select", Kinds::OBJECT);
    members.finish()?;
    let select = select.map_or(Ok(Select::ALL), |select| parse_select(table, select))?;
    plan.select |= select;
    match columns {
        Some(columns) => add_columns(plan, table, columns, select)?,
        None => {
            let all = table.walk().iter().copied();
            for column in all.filter(|column| *column != ColumnRef::Uuid) {
                if !plan.add(column, select) {
                    return Err(Error::syntax_error_anywhere(mentioned_twice(table, column)));
                }
            }
        }
    }
    let parsed = conditions.map(|conditions| Filter::parse(table, conditions)).transpose()?.flatten();
    for column in parsed.iter().flat_map(Filter::columns) {
        plan.add_filtered(column);
    }
    Ok(parsed)
}

fn add_columns(
    plan: &mut TablePlan,
    table: &TableSchema,
    columns: Value<'_>,
    select: Select,
) -> Result<(), Error> {
    for element in columns.elements() {
        let Some(name) = element.as_string() else {
            return Err(Error::syntax_error(columns, "array of column names expected"));
        };
        let Some(column) = table.find_column(&name) else {
            return Err(Error::syntax_error(columns, format!("{name} is not a valid column name")));
        };
        if !plan.add(column, select) {
            return Err(Error::syntax_error(columns, mentioned_twice(table, column)));
        }
    }
    Ok(())
}

fn mentioned_twice(table: &TableSchema, column: ColumnRef) -> String {
    let name = match column {
        ColumnRef::Uuid => "_uuid",
        ColumnRef::Version => "_version",
        ColumnRef::Column(id) => &table.column(id).name,
    };
    format!("column {name} mentioned more than once")
}

fn parse_select(table: &TableSchema, json: Value<'_>) -> Result<Select, Error> {
    let mut members = Members::new(json, format!("table {} select", table.name));
    let mut select = Select::default();
    for (name, kind) in [
        ("initial", Select::INITIAL),
        ("insert", Select::INSERT),
        ("delete", Select::DELETE),
        ("modify", Select::MODIFY),
    ] {
        if members.optional(name, Kinds::BOOLEAN).and_then(Value::as_boolean).unwrap_or(true) {
            select |= kind;
        }
    }
    members.finish()?;
    Ok(select)
}

/// Parses the `monitor-cond-change-requests`: what the monitor asks for from then on. Only filters change.
pub(crate) fn parse_condition_change(
    old: &Spec,
    schema: &DatabaseSchema,
    requests: Value<'_>,
) -> Result<Spec, Error> {
    if requests.kind() != Kind::Object {
        return Err(Error::syntax_error_anywhere("monitor-cond-change-requests must be object"));
    }
    let mut spec = old.clone();
    for (name, value) in last_members(requests) {
        let Some((id, table)) = schema.find_table(&name) else { return Err(no_table(&name)) };
        let Some(plan) = spec.tables.iter_mut().find(|plan| plan.table == id) else {
            return Err(Error::syntax_error_anywhere(format!("no table named {name} in monitor session")));
        };
        if value.kind() != Kind::Array {
            return Err(Error::syntax_error_anywhere(format!(
                "table {name} no monitor-cond-change JSON array"
            )));
        }
        for element in value.elements() {
            let filter = parse_change(table, element, old.version)?;
            if let Some(filter) = filter {
                Arc::make_mut(plan).set_filter(filter.map(Arc::new));
            }
        }
    }
    Ok(spec)
}

/// The new filter of one request: `None` if the monitor's version has no filters.
fn parse_change(
    table: &TableSchema,
    request: Value<'_>,
    version: Version,
) -> Result<Option<Option<Filter>>, Error> {
    let mut members = Members::new(request, format!("table {}", table.name));
    let columns = members.optional("columns", Kinds::ARRAY);
    let conditions = members.optional("where", Kinds::ARRAY);
    members.finish()?;
    if columns.is_some() {
        return Err(Error::syntax_error(request, "changing columns is unsupported"));
    }
    if version == Version::One {
        return Ok(None);
    }
    Ok(Some(conditions.map(|conditions| Filter::parse(table, conditions)).transpose()?.flatten()))
}
