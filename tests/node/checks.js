// The checks of tests/clients/checks.py through the Couchbase SDK for Node.js.
// usage: node checks.js CONNECTION USER PASSWORD BUCKET [AUTHORITY]; prints `ok NAME` or `not ok NAME: reason`.
'use strict'

const assert = require('node:assert/strict')
const couchbase = require('couchbase')

const [connection, username, password, bucketName, trustStorePath] = process.argv.slice(2)
const MEBIBYTE = 1024 * 1024
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

async function fails(promise, ...kinds) {
  let error = null
  try {
    await promise
  } catch (raised) {
    error = raised
  }
  assert.ok(error, `no error, ${kinds.map((k) => k.name)} expected`)
  assert.ok(kinds.some((kind) => error instanceof kind), `${error.constructor.name}: ${error.message}, ${kinds.map((k) => k.name)} expected`)
  return error
}

// The SDK retries a locked document until its timeout, and then names the lock as the reason.
async function failsLocked(promise) {
  const error = await fails(promise, couchbase.CouchbaseError)
  const told = `${error.constructor.name} ${error.message} ${JSON.stringify(error.context || {})} ${JSON.stringify(error.cause || {})}`
  assert.match(told, /lock|imeout/i)
}

const raw = { transcoder: new couchbase.RawBinaryTranscoder() }
const { LookupInSpec: look, MutateInSpec: edit } = couchbase
const now = () => Math.floor(Date.now() / 1000)

async function expiryOf(c, key) {
  return (await c.get(key, { withExpiry: true })).expiryTime || 0
}

function within(time, earliest, latest) {
  assert.ok(earliest <= time && time <= latest, `${time}, not ${earliest} to ${latest}`)
}

async function missing(c, ...keys) {
  for (const key of keys) await fails(c.get(key), couchbase.DocumentNotFoundError)
}

async function holds(c, documents) {
  for (const [key, document] of Object.entries(documents)) assert.deepEqual((await c.get(key)).content, document)
}

// Nothing of a transaction is left in the document.
async function unstaged(c, ...keys) {
  for (const key of keys) assert.equal((await c.lookupIn(key, [look.exists('txn', { xattr: true })])).content[0].value, false)
}

// The SDK does not begin another attempt after an operation of the lambda has met a conflict: the caller repeats the transaction.
async function repeated(transactions, logic) {
  for (let round = 0; ; round++) {
    try {
      return await transactions.run(logic)
    } catch (error) {
      if (!(error instanceof couchbase.TransactionFailedError) || round === 100) throw error
      await sleep(Math.random() * 20)
    }
  }
}

// Makes a scope with the given collections ({name: settings}) and gives `use` its collections. The scope is dropped afterwards.
async function withScope(c, key, settings, use) {
  const manager = c.scope.bucket.collections()
  const scope = key.replace('::', '-')
  await manager.dropScope(scope).catch(() => {})
  await manager.createScope(scope)
  for (const [name, chosen] of Object.entries(settings)) await manager.createCollection(name, scope, chosen)
  await use(Object.fromEntries(Object.keys(settings).map((name) => [name, c.scope.bucket.scope(scope).collection(name)])), scope, manager)
  await manager.dropScope(scope)
}

// Stores 60 documents with the prefix and two without; returns {key: document} of the former, and the state to be consistent with.
async function scanned(c, prefix) {
  const documents = Object.fromEntries(Array.from({ length: 60 }, (_, n) => [`${prefix}-${String(n).padStart(2, '0')}`, { n }]))
  const written = await Promise.all(Object.entries({ ...documents, a: 1, '~': 2 }).map(([key, document]) => c.upsert(key, document)))
  return [documents, new couchbase.MutationState(...written.map((result) => result.token))]
}

function contents(results) {
  const found = Object.fromEntries(results.map((result) => [result.id, result.content]))
  assert.equal(Object.keys(found).length, results.length, 'a document was returned twice')
  return found
}

const ids = (results) => results.map((result) => result.id).sort()

const PASSWORD = 'correct-horse-battery'
const reader = { name: 'data_reader', bucket: bucketName }

function connected(user, password) {
  const timeouts = { kvTimeout: 8000, kvDurableTimeout: 8000, connectTimeout: 10000 }
  return couchbase.connect(connection, { username: user, password, timeouts, security: { trustStorePath } })
}

// {role and what it is for: its origins}
function rolesOf(user) {
  const text = (parts) => parts.filter((part) => part).join(' ')
  return Object.fromEntries(user.effectiveRoles.map((role) => [
    text([role.name, role.bucket, role.scope, role.collection]), role.origins.map((origin) => text([origin.type, origin.name])),
  ]))
}

const checks = {
  ping: async () => {
    // A connection of its own: the buckets of other checks come and go.
    const own = await connected(username, password)
    const bucket = own.bucket(bucketName)
    // Until the bucket is open, a report is empty.
    await bucket.defaultCollection().exists('any')
    const { KeyValue, Management } = couchbase.ServiceType
    const answers = (pinged, service) => {
      const reports = pinged.services[service] || []
      assert.ok(reports.length > 0 && reports.every((report) => report.state === couchbase.PingState.Ok), `${service}: ${JSON.stringify(pinged)}`)
    }
    // The SDK pings no other service of a bucket.
    answers(await bucket.ping(), KeyValue)
    const pinged = await own.ping()
    answers(pinged, KeyValue)
    answers(pinged, Management)
    const known = await own.diagnostics()
    assert.ok((known.services[KeyValue] || []).some((endpoint) => endpoint.state === couchbase.EndpointState.Connected), JSON.stringify(known))
    await own.close()
  },
  'upsert-get': async (c, key) => {
    const document = { text: 'grüße', number: 1.5, list: [1, null, true], deep: { a: { b: {} } } }
    const written = await c.upsert(key, document)
    const read = await c.get(key)
    assert.deepEqual(read.content, document)
    assert.equal(read.cas.toString(), written.cas.toString())
    assert.ok(written.token)
  },
  'get-missing': async (c, key) => fails(c.get(key), couchbase.DocumentNotFoundError),
  insert: async (c, key) => {
    await c.insert(key, { n: 1 })
    assert.deepEqual((await c.get(key)).content, { n: 1 })
  },
  'insert-existing': async (c, key) => {
    await c.insert(key, { n: 1 })
    await fails(c.insert(key, { n: 2 }), couchbase.DocumentExistsError)
    assert.deepEqual((await c.get(key)).content, { n: 1 })
  },
  'insert-expiry-absolute': async (c, key) => {
    for (const seconds of [3600, 40 * 86400]) {
      const time = now() + seconds
      await c.insert(key, { n: 1 }, { expiry: new Date(time * 1000) })
      assert.equal(await expiryOf(c, key), time)
      await c.remove(key)
    }
  },
  replace: async (c, key) => {
    const { cas } = await c.upsert(key, 1)
    await c.replace(key, 2, { cas })
    await c.replace(key, 3)
    assert.equal((await c.get(key)).content, 3)
  },
  'replace-missing': async (c, key) => fails(c.replace(key, 1), couchbase.DocumentNotFoundError),
  'replace-cas-mismatch': async (c, key) => {
    const { cas } = await c.upsert(key, 1)
    await c.upsert(key, 2)
    await fails(c.replace(key, 3, { cas }), couchbase.CasMismatchError)
    assert.equal((await c.get(key)).content, 2)
  },
  'replace-expiry': async (c, key) => {
    await c.upsert(key, { n: 1 })
    const started = now()
    await c.replace(key, { n: 2 }, { expiry: 100 })
    const before = await expiryOf(c, key)
    within(before, started + 99, now() + 101)
    await c.replace(key, { n: 3 }, { preserveExpiry: true })
    assert.equal(await expiryOf(c, key), before)
    await c.replace(key, { n: 4 })
    assert.equal(await expiryOf(c, key), 0)
    await holds(c, { [key]: { n: 4 } })
  },
  remove: async (c, key) => {
    const { cas } = await c.upsert(key, 1)
    await c.remove(key, { cas })
    await fails(c.get(key), couchbase.DocumentNotFoundError)
  },
  'remove-missing': async (c, key) => fails(c.remove(key), couchbase.DocumentNotFoundError),
  'remove-cas-mismatch': async (c, key) => {
    const { cas } = await c.upsert(key, 1)
    await c.upsert(key, 2)
    await fails(c.remove(key, { cas }), couchbase.CasMismatchError)
    assert.equal((await c.get(key)).content, 2)
  },
  exists: async (c, key) => {
    assert.equal((await c.exists(key)).exists, false)
    await c.upsert(key, 1)
    assert.equal((await c.exists(key)).exists, true)
  },
  touch: async (c, key) => {
    await c.upsert(key, 1)
    await c.touch(key, 2)
    await sleep(3200)
    await fails(c.get(key), couchbase.DocumentNotFoundError)
    await fails(c.touch(key, 2), couchbase.DocumentNotFoundError)
  },
  'get-and-touch': async (c, key) => {
    await c.upsert(key, 'v', { expiry: 2 })
    assert.equal((await c.getAndTouch(key, 60)).content, 'v')
    await sleep(3200)
    assert.equal((await c.get(key)).content, 'v')
  },
  'touch-zero': async (c, key) => {
    await c.upsert(key, { n: 1 }, { expiry: 100 })
    assert.notEqual(await expiryOf(c, key), 0)
    await c.touch(key, 0)
    assert.equal(await expiryOf(c, key), 0)
    await c.upsert(key, { n: 2 }, { expiry: 100 })
    assert.deepEqual((await c.getAndTouch(key, 0)).content, { n: 2 })
    assert.equal(await expiryOf(c, key), 0)
  },
  expiry: async (c, key) => {
    await c.upsert(key, 1, { expiry: 2 })
    assert.equal((await c.get(key)).content, 1)
    await sleep(3200)
    await fails(c.get(key), couchbase.DocumentNotFoundError)
    await c.insert(key, 2)
  },
  'preserve-expiry': async (c, key) => {
    await c.upsert(key, 1, { expiry: 2 })
    await c.upsert(key, 2, { preserveExpiry: true })
    await sleep(3200)
    await fails(c.get(key), couchbase.DocumentNotFoundError)
  },
  'get-and-lock': async (c, key) => {
    await c.upsert(key, 'v')
    const locked = await c.getAndLock(key, 10)
    assert.equal(locked.content, 'v')
    assert.equal((await c.get(key)).content, 'v')
    await failsLocked(c.upsert(key, 2, { timeout: 700 }))
    await failsLocked(c.getAndLock(key, 10, { timeout: 700 }))
    await c.replace(key, 'w', { cas: locked.cas })
    await c.upsert(key, 'free again')
  },
  unlock: async (c, key) => {
    await c.upsert(key, 1)
    const { cas } = await c.getAndLock(key, 15)
    await c.unlock(key, cas)
    await c.upsert(key, 2)
    await fails(c.unlock(key, cas, { timeout: 700 }), couchbase.CouchbaseError)
  },
  'lock-errors': async (c, key) => {
    await fails(c.getAndLock(key, 10), couchbase.DocumentNotFoundError)
    await fails(c.getAndTouch(key, 10), couchbase.DocumentNotFoundError)
    const { cas } = await c.upsert(`${key}-other`, 1)
    await fails(c.unlock(key, cas), couchbase.DocumentNotFoundError)
    const free = await c.upsert(key, 1)
    await fails(c.unlock(key, free.cas), couchbase.DocumentNotLockedError)
    const locked = await c.getAndLock(key, 15)
    await fails(c.unlock(key, free.cas), couchbase.CasMismatchError)
    await c.replace(key, 2, { cas: locked.cas })
    const again = await c.getAndLock(key, 15)
    assert.equal(again.content, 2)
    await c.remove(key, { cas: again.cas })
    await missing(c, key)
  },
  counter: async (c, key) => {
    const binary = c.binary()
    assert.equal((await binary.increment(key, 5, { initial: 10 })).value, 10)
    assert.equal((await binary.increment(key, 5)).value, 15)
    assert.equal((await binary.decrement(key, 3)).value, 12)
    assert.equal((await binary.decrement(key, 100)).value, 0)
    assert.equal((await c.get(key)).content, 0)
  },
  'counter-missing': async (c, key) => fails(c.binary().increment(key, 1), couchbase.DocumentNotFoundError),
  'counter-not-a-number': async (c, key) => {
    await c.upsert(key, { a: 1 })
    await fails(c.binary().increment(key, 1), couchbase.DeltaInvalidError)
  },
  'decrement-creates': async (c, key) => {
    const binary = c.binary()
    await fails(binary.decrement(key, 1), couchbase.DocumentNotFoundError)
    const started = now()
    assert.equal((await binary.decrement(key, 1, { initial: 7, expiry: 100 })).value, 7)
    within(await expiryOf(c, key), started + 99, now() + 101)
    assert.equal((await binary.decrement(key, 2)).value, 5)
  },
  'append-prepend': async (c, key) => {
    await c.upsert(key, Buffer.from('b'), raw)
    const { cas } = await c.binary().append(key, Buffer.from('c'))
    await c.binary().prepend(key, Buffer.from('a'), { cas })
    assert.equal((await c.get(key, raw)).content.toString(), 'abc')
    await fails(c.binary().append(key, Buffer.from('x'), { cas }), couchbase.CasMismatchError, couchbase.DocumentExistsError)
  },
  'append-missing': async (c, key) => {
    const error = await fails(c.binary().append(key, Buffer.from('x')), couchbase.CouchbaseError)
    assert.ok(!(error instanceof couchbase.TimeoutError), error.message)
    assert.equal((await c.exists(key)).exists, false)
  },
  'durability-majority': async (c, key) => {
    const durabilityLevel = couchbase.DurabilityLevel.Majority
    const { cas } = await c.upsert(key, 1, { durabilityLevel })
    await c.replace(key, 2, { cas, durabilityLevel })
    await c.remove(key, { durabilityLevel })
    await c.insert(key, 3, { durabilityLevel })
    assert.equal((await c.binary().increment(key, 1, { durabilityLevel })).value, 4)
  },
  'durability-persist-refused': async (c, key) => {
    for (const durabilityLevel of [couchbase.DurabilityLevel.MajorityAndPersistOnMaster, couchbase.DurabilityLevel.PersistToMajority]) {
      await fails(c.upsert(key, 1, { durabilityLevel }), couchbase.DurabilityLevelNotAvailableError)
    }
    assert.equal((await c.exists(key)).exists, false)
  },
  'large-value': async (c, key) => {
    for (const size of [32 * 1024, 32 * 1024 + 1, MEBIBYTE, 20 * MEBIBYTE]) {
      const value = Buffer.alloc(size, size % 251)
      await c.upsert(key, value, { ...raw, timeout: 30000 })
      const read = await c.get(key, { ...raw, timeout: 30000 })
      assert.ok(read.content.equals(value), `${size} bytes`)
    }
  },
  'too-big': async (c, key) => {
    await c.upsert(key, Buffer.from('old'), raw)
    await fails(c.upsert(key, Buffer.alloc(20 * MEBIBYTE + 1), { ...raw, timeout: 30000 }), couchbase.ValueTooLargeError)
    assert.equal((await c.get(key, raw)).content.toString(), 'old')
  },
  'key-too-long': async (c, key) => withScope(c, key, { one: {} }, async ({ one }) => {
    // Its bytes count, not its characters.
    for (const [documents, most] of [[c, 250], [one, 246]]) {
      const longest = 'ü'.repeat(most / 2)
      await documents.upsert(longest, { n: 1 })
      await fails(documents.upsert(`${longest}k`, { n: 2 }), couchbase.ValueTooLargeError)
      await holds(documents, { [longest]: { n: 1 } })
    }
  }),
  'binary-value': async (c, key) => {
    const value = Buffer.from(Array.from({ length: 256 }, (_, n) => n))
    await c.upsert(key, value)
    assert.ok((await c.get(key)).content.equals(value))
  },
  'string-value': async (c, key) => {
    const transcoder = new couchbase.RawStringTranscoder()
    await c.upsert(key, 'grüße', { transcoder })
    assert.equal((await c.get(key, { transcoder })).content, 'grüße')
  },
  'any-replica': async (c, key) => {
    await c.upsert(key, { n: 1 })
    const found = await c.getAnyReplica(key)
    assert.deepEqual(found.content, { n: 1 })
    assert.equal((await c.getAllReplicas(key)).length, 1)
  },
  'any-replica-missing': async (c, key) => fails(c.getAnyReplica(key), couchbase.DocumentUnretrievableError),
  batch: async (c, key) => {
    const keys = Array.from({ length: 500 }, (_, n) => `${key}-${n}`)
    await Promise.all(keys.map((k, n) => c.upsert(k, { n })))
    const read = await Promise.all(keys.map((k) => c.get(k)))
    read.forEach((result, n) => assert.deepEqual(result.content, { n }))
    await Promise.all(keys.map((k) => c.remove(k)))
  },
  'lookup-in': async (c, key) => {
    const { cas } = await c.upsert(key, { a: 1, list: [1, 2, 'x'], deep: { b: { c: 'grüße' } }, nothing: null })
    const read = await c.lookupIn(key, [
      look.get('deep.b.c'), look.get('list[-1]'), look.get('deep.b'), look.get('nothing'), look.exists('a'), look.exists('none'),
      look.count('list'), look.count(''), look.get('none'), look.get('a.b'), look.get(''),
    ])
    assert.equal(read.cas.toString(), cas.toString())
    const values = read.content.slice(0, 8).map((entry) => entry.value)
    assert.deepEqual(values, ['grüße', 'x', { c: 'grüße' }, null, true, false, 3, 4])
    assert.ok(read.content[8].error instanceof couchbase.PathNotFoundError, `${read.content[8].error}`)
    assert.ok(read.content[9].error instanceof couchbase.PathMismatchError, `${read.content[9].error}`)
    assert.equal(read.content[10].value.a, 1)
    await fails(c.lookupIn(`${key}-missing`, [look.get('a')]), couchbase.DocumentNotFoundError)
    await fails(c.lookupIn(key, Array(17).fill(look.get('a'))), couchbase.InvalidArgumentError)
  },
  'lookup-any-replica': async (c, key) => {
    const { cas } = await c.upsert(key, { a: 1 })
    const found = await c.lookupInAnyReplica(key, [look.get('a'), look.exists('none')])
    assert.deepEqual(found.content.map((entry) => entry.value), [1, false])
    assert.equal(found.isReplica, false)
    assert.equal(found.cas.toString(), cas.toString())
    const all = await c.lookupInAllReplicas(key, [look.get('a')])
    assert.deepEqual(all.map((one) => [one.isReplica, one.content[0].value]), [[false, 1]])
    await fails(c.lookupInAnyReplica(`${key}-missing`, [look.get('a')]), couchbase.DocumentUnretrievableError)
  },
  'mutate-in': async (c, key) => {
    const { cas } = await c.upsert(key, { n: 1, old: 'x', gone: true, list: [2] })
    const changed = await c.mutateIn(key, [
      edit.upsert('n', 2), edit.insert('fresh', { a: null }), edit.replace('old', 'y'), edit.remove('gone'),
      edit.arrayAppend('list', 3), edit.arrayPrepend('list', 1), edit.arrayInsert('list[1]', 1.5), edit.arrayAddUnique('list', 4),
      edit.arrayAppend('list', [8, 9], { multi: true }),
      edit.increment('counter', 5), edit.decrement('counter', 2), edit.upsert('x.y.z', [1], { createPath: true }),
    ])
    assert.deepEqual([changed.content[9].value, changed.content[10].value], [5, 3])
    assert.ok(changed.token)
    const read = await c.get(key)
    assert.deepEqual(read.content, { n: 2, old: 'y', list: [1, 1.5, 2, 3, 4, 8, 9], fresh: { a: null }, counter: 3, x: { y: { z: [1] } } })
    assert.equal(read.cas.toString(), changed.cas.toString())
    await c.mutateIn(key, [edit.upsert('n', 3)], { cas: changed.cas })
    assert.notEqual(changed.cas.toString(), cas.toString())
    await c.mutateIn(key, [edit.replace('', { whole: true })])
    await holds(c, { [key]: { whole: true } })
    await c.mutateIn(key, [edit.remove('')])
    await missing(c, key)
  },
  'mutate-in-errors': async (c, key) => {
    const document = { a: 1, list: [1, 'x'], huge: 1e20 }
    const first = await c.upsert(key, document)
    const { cas } = await c.mutateIn(key, [edit.upsert('a', 1)])
    const errors = [
      [edit.insert('a', 2), couchbase.PathExistsError],
      [edit.arrayAddUnique('list', 1), couchbase.PathExistsError],
      [edit.replace('none', 2), couchbase.PathNotFoundError],
      [edit.remove('none'), couchbase.PathNotFoundError],
      [edit.upsert('x.y', 2), couchbase.PathNotFoundError],
      [edit.upsert('a.b', 2), couchbase.PathMismatchError],
      [edit.arrayAppend('a', 2), couchbase.PathMismatchError],
      [edit.increment('list', 2), couchbase.PathMismatchError],
      [edit.upsert('a..b[', 2), couchbase.PathInvalidError],
      [edit.arrayAddUnique('list', { b: 1 }), couchbase.ValueInvalidError],
      [edit.increment('a', 0), couchbase.DeltaInvalidError],
      [edit.increment('huge', 1), couchbase.NumberTooBigError],
    ]
    for (const [spec, kind] of errors) {
      await fails(c.mutateIn(key, [spec]), kind)
      await fails(c.mutateIn(key, [edit.upsert('changed', true), spec]), kind)
    }
    await fails(c.mutateIn(key, [edit.upsert('a', 2)], { cas: first.cas }), couchbase.CasMismatchError)
    await fails(c.mutateIn(`${key}-missing`, [edit.upsert('a', 2)]), couchbase.DocumentNotFoundError)
    const read = await c.get(key)
    assert.deepEqual(read.content, document)
    assert.equal(read.cas.toString(), cas.toString())
    await c.upsert(`${key}-raw`, Buffer.from('text'), raw)
    await fails(c.mutateIn(`${key}-raw`, [edit.upsert('a', 2)]), couchbase.DocumentNotJsonError)
  },
  'mutate-in-upsert': async (c, key) => {
    const made = { storeSemantics: couchbase.StoreSemantics.Upsert }
    const inserted = { storeSemantics: couchbase.StoreSemantics.Insert }
    await fails(c.mutateIn(key, [edit.upsert('a', 1)]), couchbase.DocumentNotFoundError)
    await c.mutateIn(key, [edit.upsert('a', 1)], made)
    await c.mutateIn(key, [edit.upsert('a', 2), edit.increment('n', 3)], made)
    await holds(c, { [key]: { a: 2, n: 3 } })
    await fails(c.mutateIn(key, [edit.upsert('a', 9)], inserted), couchbase.DocumentExistsError)
    await c.remove(key)
    await c.mutateIn(key, [edit.insert('a', 1)], inserted)
    await holds(c, { [key]: { a: 1 } })
    await c.remove(key)
    await c.mutateIn(key, [edit.arrayAppend('', 1), edit.arrayAppend('', 2)], made)
    await holds(c, { [key]: [1, 2] })
    // Whoever may make the document may make the parents of a path.
    for (const options of [made, inserted]) {
      await c.remove(key)
      await c.mutateIn(key, [edit.upsert('x.y', 1)], options)
      await holds(c, { [key]: { x: { y: 1 } } })
    }
  },
  'mutate-in-durable': async (c, key) => {
    const { DurabilityLevel } = couchbase
    await c.upsert(key, { n: 1 })
    const specs = [edit.increment('n', 1), edit.upsert('_x', 1, { xattr: true })]
    const { content, token } = await c.mutateIn(key, specs, { durabilityLevel: DurabilityLevel.Majority })
    assert.equal(content[0].value, 2)
    assert.ok(token)
    for (const durabilityLevel of [DurabilityLevel.MajorityAndPersistOnMaster, DurabilityLevel.PersistToMajority]) {
      await fails(c.mutateIn(key, [edit.increment('n', 1)], { durabilityLevel }), couchbase.DurabilityLevelNotAvailableError)
    }
    await holds(c, { [key]: { n: 2 } })
  },
  'mutate-in-clears-expiry': async (c, key) => {
    await c.upsert(key, { n: 1 }, { expiry: 100 })
    await c.mutateIn(key, [edit.increment('n', 1)])
    assert.equal(await expiryOf(c, key), 0)
  },
  'preserve-expiry-in-mutate': async (c, key) => {
    await c.upsert(key, { n: 1 }, { expiry: 100 })
    const before = await expiryOf(c, key)
    await c.mutateIn(key, [edit.increment('n', 1)], { preserveExpiry: true })
    assert.equal(await expiryOf(c, key), before)
    await holds(c, { [key]: { n: 2 } })
  },
  'get-with-expiry': async (c, key) => {
    const started = now()
    await c.upsert(key, { n: 1 }, { expiry: 100 })
    const read = await c.get(key, { withExpiry: true })
    assert.deepEqual(read.content, { n: 1 })
    within(read.expiryTime, started + 99, now() + 101)
    await c.mutateIn(key, [edit.upsert('n', 2)], { expiry: 200 })
    within(await expiryOf(c, key), started + 199, now() + 201)
    await c.upsert(key, { n: 3 })
    assert.equal(await expiryOf(c, key), 0)
  },
  'get-with-projection': async (c, key) => {
    const fields = Object.fromEntries(Array.from({ length: 20 }, (_, n) => [`f${n}`, n]))
    await c.upsert(key, { ...fields, deep: { b: { c: 1 }, d: 2 }, list: [{ e: 1 }] }, { expiry: 100 })
    const read = await c.get(key, { project: ['f1', 'deep.b.c', 'none'] })
    assert.deepEqual(read.content, { f1: 1, deep: { b: { c: 1 } } })
    const timed = await c.get(key, { project: ['deep'], withExpiry: true })
    assert.deepEqual(timed.content, { deep: { b: { c: 1 }, d: 2 } })
    assert.ok(timed.expiryTime > now())
    // More paths than a request can hold: the SDK reads the whole document.
    assert.deepEqual((await c.get(key, { project: Object.keys(fields) })).content, fields)
    await fails(c.get(`${key}-missing`, { project: ['f1'] }), couchbase.DocumentNotFoundError)
  },
  'data-structures': async (c, key) => {
    await Promise.all(['list', 'map', 'set', 'queue'].map((kind) => c.remove(`${key}-${kind}`).catch(() => {})))
    const list = c.list(`${key}-list`)
    await list.push('b')
    await list.push('c')
    await list.unshift('a')
    assert.deepEqual(await list.getAll(), ['a', 'b', 'c'])
    assert.deepEqual([await list.getAt(1), await list.size(), await list.indexOf('c'), await list.indexOf('x')], ['b', 3, 2, -1])
    await list.removeAt(0)
    assert.deepEqual(await list.getAll(), ['b', 'c'])
    await fails(list.getAt(7), couchbase.PathNotFoundError)
    const map = c.map(`${key}-map`)
    await map.set('one', 1)
    await map.set('two', { n: 2 })
    assert.deepEqual([await map.get('two'), await map.size(), await map.exists('one'), await map.exists('no')], [{ n: 2 }, 2, true, false])
    await map.remove('one')
    assert.deepEqual(await map.keys(), ['two'])
    await fails(map.get('one'), couchbase.PathNotFoundError)
    const set = c.set(`${key}-set`)
    assert.deepEqual([await set.add('a'), await set.add('b'), await set.add('a')], [true, true, false])
    assert.deepEqual([await set.size(), await set.contains('b'), await set.contains('c')], [2, true, false])
    await set.remove('a')
    assert.deepEqual(await set.values(), ['b'])
    const queue = c.queue(`${key}-queue`)
    await queue.push(1)
    await queue.push(2)
    assert.deepEqual([await queue.size(), await queue.pop(), await queue.pop(), await queue.size()], [2, 1, 2, 0])
  },
  xattrs: async (c, key) => {
    const xattr = { xattr: true }
    const { Cas, SeqNo, ValueCrc32c } = couchbase.MutateInMacro
    const body = { a: 1 }
    await c.upsert(key, body)
    const { cas } = await c.mutateIn(key, [
      edit.upsert('meta.owner', 'grüße', { xattr: true, createPath: true }),
      edit.upsert('meta.cas', Cas), edit.upsert('meta.seqno', SeqNo), edit.upsert('meta.crc', ValueCrc32c),
    ])
    const read = await c.lookupIn(key, [
      look.get('meta', xattr), look.exists('meta.owner', xattr), look.get('meta.none', xattr), look.get(couchbase.LookupInMacro.Document), look.get('a'),
    ])
    const [{ value: meta }, { value: found }, { error }, { value: virtual }, { value: a }] = read.content
    const bytes = Buffer.alloc(8)
    bytes.writeBigUInt64LE(BigInt(cas.toString()))
    assert.equal(meta.cas, `0x${bytes.toString('hex')}`)
    assert.equal(virtual.CAS, `0x${BigInt(cas.toString()).toString(16).padStart(16, '0')}`)
    assert.deepEqual([meta.owner, meta.seqno, meta.crc], ['grüße', virtual.seqno, virtual.value_crc32c])
    assert.deepEqual([virtual.deleted, virtual.exptime, virtual.value_bytes, virtual.datatype], [false, 0, JSON.stringify(body).length, ['json', 'xattr']])
    assert.ok(found && a === 1 && error instanceof couchbase.PathNotFoundError, `${found} ${a} ${error}`)
    await holds(c, { [key]: body })
    await c.upsert(key, { a: 2 })
    assert.equal((await c.lookupIn(key, [look.get('meta.owner', xattr)])).content[0].value, 'grüße')
    await c.mutateIn(key, [edit.remove('meta', xattr)])
    assert.equal((await c.lookupIn(key, [look.exists('meta', xattr)])).content[0].value, false)
    await holds(c, { [key]: { a: 2 } })
  },
  'collection-manage': async (c, key) => withScope(c, key, { plain: {}, timed: { maxExpiry: 100 } }, async (_, scope, manager) => {
    const listed = async () => {
      const { collections } = (await manager.getAllScopes()).find((one) => one.name === scope)
      return Object.fromEntries(collections.map((one) => [one.name, one.maxExpiry]))
    }
    assert.deepEqual(await listed(), { plain: 0, timed: 100 })
    await fails(manager.createScope(scope), couchbase.ScopeExistsError)
    await fails(manager.createCollection('plain', scope, {}), couchbase.CollectionExistsError)
    await fails(manager.createCollection('plain', `${scope}-missing`, {}), couchbase.ScopeNotFoundError)
    await fails(manager.createScope('_reserved'), couchbase.InvalidArgumentError)
    await manager.updateCollection('plain', scope, { maxExpiry: 7 })
    await manager.updateCollection('timed', scope, { maxExpiry: -1 })
    assert.deepEqual(await listed(), { plain: 7, timed: -1 })
    await fails(manager.updateCollection('missing', scope, { maxExpiry: 7 }), couchbase.CollectionNotFoundError)
    await manager.dropCollection('plain', scope)
    assert.deepEqual(await listed(), { timed: -1 })
    await fails(manager.dropCollection('plain', scope), couchbase.CollectionNotFoundError)
    await fails(manager.dropCollection('plain', `${scope}-missing`), couchbase.ScopeNotFoundError)
    await fails(manager.dropScope(`${scope}-missing`), couchbase.ScopeNotFoundError)
  }),
  'collection-documents': async (c, key) => withScope(c, key, { one: {}, other: {} }, async ({ one, other }, scope, manager) => {
    await c.upsert(key, { n: 0 })
    await one.insert(key, { n: 1 })
    await other.insert(key, { n: 2 })
    await holds(c, { [key]: { n: 0 } })
    await holds(one, { [key]: { n: 1 } })
    const changed = await one.mutateIn(key, [edit.increment('n', 4), edit.upsert('list', [1])])
    assert.equal(changed.content[0].value, 5)
    assert.equal((await one.lookupIn(key, [look.get('n')])).content[0].value, 5)
    assert.equal((await one.binary().increment('counter', 5, { initial: 10 })).value, 10)
    assert.equal((await one.binary().increment('counter', 5)).value, 15)
    await missing(c, 'counter')
    await one.remove(key)
    await missing(one, key)
    await holds(c, { [key]: { n: 0 } })
    await holds(other, { [key]: { n: 2 } })
    await manager.dropCollection('one', scope)
    const quick = { timeout: 2000 }
    await fails(one.get('counter', quick), couchbase.CollectionNotFoundError, couchbase.TimeoutError)
    await fails(one.upsert(key, {}, quick), couchbase.CollectionNotFoundError, couchbase.TimeoutError)
    // The new collection of that name has none of the old documents.
    await manager.createCollection('one', scope, {})
    await missing(one, 'counter')
    await one.upsert(key, { n: 3 })
    await holds(one, { [key]: { n: 3 } })
    await holds(other, { [key]: { n: 2 } })
  }),
  'collection-max-expiry': async (c, key) => withScope(c, key, { timed: { maxExpiry: 100 } }, async ({ timed }) => {
    for (const [expiry, expected] of [[undefined, 100], [50, 50], [900, 100]]) {
      const started = now()
      await timed.upsert(key, { n: 1 }, { expiry })
      within(await expiryOf(timed, key), started + expected - 1, now() + expected + 1)
    }
    await c.upsert(key, { n: 1 })
    assert.equal(await expiryOf(c, key), 0)
  }),
  'scan-range': async (c, key) => withScope(c, key, { scanned: {}, other: {} }, async (collections) => {
    const [documents, consistentWith] = await scanned(collections.scanned, key)
    await scanned(collections.other, 'other')
    const options = { concurrency: 64, consistentWith }
    const term = (text, exclusive) => new couchbase.ScanTerm(text, exclusive)
    const scan = (...arguments_) => collections.scanned.scan(...arguments_)
    assert.deepEqual(contents(await scan(new couchbase.PrefixScan(`${key}-`), options)), documents)
    assert.deepEqual(contents(await scan(new couchbase.RangeScan(term(`${key}-00`), term(`${key}-59`)), options)), documents)
    const part = await scan(new couchbase.RangeScan(term(`${key}-10`, true), term(`${key}-20`)), { ...options, idsOnly: true })
    assert.deepEqual(ids(part), Object.keys(documents).slice(11, 21))
    assert.ok(part.every((result) => !result.content), 'ids only, with contents')
    const all = await scan(new couchbase.RangeScan(), { ...options, idsOnly: true })
    assert.deepEqual(ids(all), ['a', ...Object.keys(documents), '~'])
    assert.deepEqual(await scan(new couchbase.PrefixScan('none'), options), [])
    const first = (await scan(new couchbase.PrefixScan(`${key}-00`), options))[0]
    assert.equal(first.cas.toString(), (await collections.scanned.get(`${key}-00`)).cas.toString())
  }),
  'scan-sampling': async (c, key) => withScope(c, key, { scanned: {} }, async (collections) => {
    const [documents] = await scanned(collections.scanned, key)
    const known = { ...documents, a: 1, '~': 2 }
    const options = { concurrency: 64 }
    const some = contents(await collections.scanned.scan(new couchbase.SamplingScan(20), options))
    assert.equal(Object.keys(some).length, 20)
    for (const [id, content] of Object.entries(some)) assert.deepEqual(content, known[id])
    const more = ids(await collections.scanned.scan(new couchbase.SamplingScan(20, 7), { ...options, idsOnly: true }))
    assert.ok(more.length === 20 && more.every((id) => id in known), `${more}`)
    await fails((async () => collections.scanned.scan(new couchbase.SamplingScan(0), options))(), couchbase.InvalidArgumentError)
  }),
  'bucket-settings': async (c, key, _, cluster) => {
    const manager = cluster.buckets()
    const name = 'node-settings'
    const { DurabilityLevel } = couchbase
    await manager.dropBucket(name).catch(() => {})
    const settings = {
      name, bucketType: couchbase.BucketType.Ephemeral, ramQuotaMB: 100, evictionPolicy: couchbase.EvictionPolicy.NoEviction,
      numReplicas: 0, maxExpiry: 100, minimumDurabilityLevel: DurabilityLevel.Majority, flushEnabled: false,
    }
    await manager.createBucket(settings)
    const stored = await manager.getBucket(name)
    for (const [setting, value] of Object.entries(settings)) assert.equal(stored[setting], value, setting)
    await fails(manager.createBucket(settings), couchbase.BucketExistsError)
    const documents = cluster.bucket(name).defaultCollection()
    const started = now()
    await documents.upsert(key, { n: 1 })
    within(await expiryOf(documents, key), started + 99, now() + 101)
    await fails(manager.flushBucket(name), couchbase.BucketNotFlushableError)
    await holds(documents, { [key]: { n: 1 } })
    const changes = { ramQuotaMB: 80, maxExpiry: 200, minimumDurabilityLevel: DurabilityLevel.None, flushEnabled: true }
    await manager.updateBucket(Object.assign(stored, changes))
    const updated = await manager.getBucket(name)
    for (const [setting, value] of Object.entries({ ...settings, ...changes })) assert.equal(updated[setting], value, setting)
    await manager.flushBucket(name)
    await missing(documents, key)
    const persisted = { ...settings, name: `${name}-refused`, minimumDurabilityLevel: DurabilityLevel.PersistToMajority }
    await fails(manager.createBucket(persisted), couchbase.InvalidArgumentError)
    await manager.dropBucket(name)
    await fails(manager.getBucket(name), couchbase.BucketNotFoundError)
    await fails(manager.dropBucket(name), couchbase.BucketNotFoundError)
    await fails(manager.flushBucket(name), couchbase.BucketNotFoundError)
  },
  'persistent-bucket': async (c, key, _, cluster) => {
    const manager = cluster.buckets()
    const name = 'node-persistent'
    const { BucketType, DurabilityLevel, EvictionPolicy } = couchbase
    await manager.dropBucket(name).catch(() => {})
    await manager.createBucket({ name, bucketType: BucketType.Couchbase, ramQuotaMB: 100, evictionPolicy: EvictionPolicy.ValueOnly, numReplicas: 0 })
    const documents = cluster.bucket(name).defaultCollection()
    await documents.upsert(key, { n: 1 }, { durabilityLevel: DurabilityLevel.PersistToMajority })
    await holds(documents, { [key]: { n: 1 } })
    const listed = Object.fromEntries((await manager.getAllBuckets()).map((one) => [one.name, one.bucketType]))
    assert.deepEqual([listed[name], listed[bucketName]], [BucketType.Couchbase, BucketType.Ephemeral])
    await manager.dropBucket(name)
    await fails(manager.getBucket(name), couchbase.BucketNotFoundError)
  },
  'user-manage': async (c, key, _, cluster) => {
    const manager = cluster.users()
    const username = key.replace('::', '-')
    await manager.dropUser(username).catch(() => {})
    await fails(manager.getUser(username), couchbase.UserNotFoundError)
    const user = { username, displayName: 'Grüße', password: PASSWORD, roles: [reader, { name: 'data_writer', bucket: bucketName, scope: '_default' }] }
    await manager.upsertUser(user)
    const made = await manager.getUser(username)
    assert.deepEqual([made.domain, made.username, made.displayName, made.groups], ['local', username, 'Grüße', []])
    assert.ok(made.passwordChanged instanceof Date)
    assert.deepEqual(rolesOf(made), { [`data_reader ${bucketName} * *`]: ['user'], [`data_writer ${bucketName} _default *`]: ['user'] })
    const listed = (await manager.getAllUsers()).map((one) => one.username)
    assert.ok(listed.includes(username) && !listed.includes('Administrator'), `${listed}`)
    await manager.upsertUser({ username, roles: [{ name: 'ro_admin' }] })
    assert.deepEqual(Object.keys(rolesOf(await manager.getUser(username))), ['ro_admin'])
    const known = (await manager.getRoles()).map((one) => one.name)
    assert.ok(['admin', 'bucket_admin', 'data_reader', 'data_writer'].every((name) => known.includes(name)), `${known}`)
    await fails(manager.upsertUser({ ...user, roles: [{ name: 'superman' }] }), couchbase.InvalidArgumentError)
    await fails(manager.upsertUser({ ...user, password: 'short' }), couchbase.InvalidArgumentError)
    await fails(manager.upsertUser({ username: 'Administrator', password: PASSWORD, roles: [reader] }), couchbase.InvalidArgumentError)
    await manager.dropUser(username)
    await fails(manager.getUser(username), couchbase.UserNotFoundError)
    await fails(manager.dropUser(username), couchbase.UserNotFoundError)
  },
  'group-manage': async (c, key, _, cluster) => {
    const manager = cluster.users()
    const name = key.replace('::', '-')
    await manager.dropUser(name).catch(() => {})
    await manager.dropGroup(name).catch(() => {})
    await fails(manager.getGroup(name), couchbase.GroupNotFoundError)
    await manager.upsertGroup({ name, description: 'readers', roles: [reader], ldapGroupReference: 'cn=readers' })
    const made = await manager.getGroup(name)
    assert.deepEqual([made.name, made.description, made.ldapGroupReference, made.roles.map((role) => role.name)], [name, 'readers', 'cn=readers', ['data_reader']])
    assert.ok((await manager.getAllGroups()).some((one) => one.name === name))
    await fails(manager.upsertUser({ username: name, password: PASSWORD, groups: [`${name}-missing`] }), couchbase.InvalidArgumentError)
    await manager.upsertUser({ username: name, password: PASSWORD, groups: [name], roles: [reader, { name: 'ro_admin' }] })
    const member = await manager.getUser(name)
    assert.deepEqual(member.groups, [name])
    assert.deepEqual(rolesOf(member), { [`data_reader ${bucketName} * *`]: ['user', `group ${name}`], ro_admin: ['user'] })
    await fails(manager.upsertGroup({ name, roles: [{ name: 'superman' }] }), couchbase.InvalidArgumentError)
    await manager.dropGroup(name)
    await fails(manager.getGroup(name), couchbase.GroupNotFoundError)
    await fails(manager.dropGroup(name), couchbase.GroupNotFoundError)
    assert.deepEqual((await manager.getUser(name)).groups, [])
    await manager.dropUser(name)
  },
  'role-enforced': async (c, key, _, cluster) => {
    const manager = cluster.users()
    const username = key.replace('::', '-')
    await c.upsert(key, { n: 1 })
    await manager.upsertUser({ username, password: PASSWORD, roles: [reader] })
    const own = await connected(username, PASSWORD)
    const documents = own.bucket(bucketName).defaultCollection()
    await holds(documents, { [key]: { n: 1 } })
    await fails(documents.upsert(key, { n: 2 }), couchbase.AuthenticationFailureError)
    await fails(documents.mutateIn(key, [edit.upsert('n', 2)]), couchbase.AuthenticationFailureError)
    await fails(documents.lookupIn(key, [look.get('_system', { xattr: true })]), couchbase.AuthenticationFailureError)
    await fails(own.users().getAllUsers(), couchbase.CouchbaseError)
    await holds(c, { [key]: { n: 1 } })
    await manager.upsertUser({ username, roles: [{ name: 'data_writer', bucket: bucketName }] })
    await documents.upsert(key, { n: 3 })
    await fails(documents.get(key), couchbase.AuthenticationFailureError)
    await holds(c, { [key]: { n: 3 } })
    await manager.dropUser(username)
    await fails(documents.upsert(key, { n: 4 }), couchbase.AuthenticationFailureError)
    await own.close()
    await fails(connected(username, PASSWORD), couchbase.AuthenticationFailureError)
  },
  'change-password': async (c, key, _, cluster) => {
    const manager = cluster.users()
    const username = key.replace('::', '-')
    const changed = `${PASSWORD}-changed`
    await c.upsert(key, { n: 1 })
    await manager.upsertUser({ username, password: PASSWORD, roles: [reader] })
    const old = await connected(username, PASSWORD)
    await old.users().changePassword(changed)
    // The SDK has no error of its own for this status.
    const refused = await fails(old.users().changePassword('never-set'), couchbase.InternalServerFailureError)
    assert.equal(refused.context.response_code, 401)
    await fails(connected(username, PASSWORD), couchbase.AuthenticationFailureError)
    await old.close()
    const own = await connected(username, changed)
    await holds(own.bucket(bucketName).defaultCollection(), { [key]: { n: 1 } })
    await own.close()
    await manager.dropUser(username)
  },
  'transaction-commit': async (c, key, transactions) => {
    const [replaced, removed] = [`${key}-replaced`, `${key}-removed`]
    await c.upsert(replaced, { n: 1 })
    await c.upsert(removed, { n: 1 })
    const result = await transactions.run(async (attempt) => {
      const one = await attempt.get(c, replaced)
      const other = await attempt.get(c, removed)
      await attempt.insert(c, key, { n: 1 })
      await attempt.replace(one, { n: 2 })
      await attempt.remove(other)
      assert.deepEqual([(await attempt.get(c, key)).content, (await attempt.get(c, replaced)).content], [{ n: 1 }, { n: 2 }])
      await fails(attempt.get(c, removed), couchbase.DocumentNotFoundError)
      await missing(c, key)
      await holds(c, { [replaced]: { n: 1 }, [removed]: { n: 1 } })
    })
    assert.equal(result.unstagingComplete, true)
    await holds(c, { [key]: { n: 1 }, [replaced]: { n: 2 } })
    await missing(c, removed)
    await unstaged(c, key, replaced)
  },
  'transaction-rollback': async (c, key, transactions) => {
    const [replaced, removed] = [`${key}-replaced`, `${key}-removed`]
    await c.upsert(replaced, { n: 1 })
    await c.upsert(removed, { n: 1 })
    const wanted = new Error('rollback wanted')
    const error = await fails(transactions.run(async (attempt) => {
      await attempt.insert(c, key, { n: 1 })
      await attempt.replace(await attempt.get(c, replaced), { n: 2 })
      await attempt.remove(await attempt.get(c, removed))
      throw wanted
    }), couchbase.TransactionFailedError)
    assert.equal(error.cause, wanted)
    await missing(c, key)
    await holds(c, { [replaced]: { n: 1 }, [removed]: { n: 1 } })
    await unstaged(c, replaced, removed)
    await c.insert(key, { n: 3 })
    await fails(transactions.run((attempt) => attempt.insert(c, key, { n: 4 })), couchbase.TransactionFailedError)
    await holds(c, { [key]: { n: 3 } })
  },
  'transaction-several-changes': async (c, key, transactions) => {
    const [inserted, replaced, removed] = [`${key}-inserted`, `${key}-replaced`, `${key}-removed`]
    await Promise.all([inserted, replaced, removed].map((one) => c.remove(one).catch(() => {})))
    await c.upsert(replaced, { n: 1 })
    await c.upsert(removed, { n: 1 })
    await transactions.run(async (attempt) => {
      await attempt.replace(await attempt.replace(await attempt.get(c, replaced), { n: 2 }), { n: 3 })
      await attempt.remove(await attempt.get(c, removed))
      await attempt.insert(c, removed, { n: 4 })
      await attempt.remove(await attempt.insert(c, key, { n: 5 }))
      await attempt.replace(await attempt.insert(c, inserted, { n: 6 }), { n: 7 })
    })
    await holds(c, { [inserted]: { n: 7 }, [replaced]: { n: 3 }, [removed]: { n: 4 } })
    await missing(c, key)
    await unstaged(c, inserted, replaced, removed)
  },
  'transaction-conflict': async (c, key, transactions) => {
    const rounds = 10
    await c.upsert(key, { n: 0 })
    const writer = async () => {
      for (let round = 0; round < rounds; round++) {
        await repeated(transactions, async (attempt) => {
          const document = await attempt.get(c, key)
          await attempt.replace(document, { n: document.content.n + 1 })
        })
      }
    }
    await Promise.all([writer(), writer()])
    await holds(c, { [key]: { n: 2 * rounds } })
    await unstaged(c, key)
  },
  'transaction-expired': async (c, key, transactions) => {
    await c.upsert(`${key}-replaced`, { n: 1 })
    // The SDK begins another attempt. It fails with an error of another kind if twice the timeout has passed by then.
    await fails(transactions.run(async (attempt) => {
      await attempt.insert(c, key, { n: 1 })
      await attempt.replace(await attempt.get(c, `${key}-replaced`), { n: 2 })
      await sleep(5200)
    }, { timeout: 5000 }), couchbase.TransactionExpiredError)
    await missing(c, key)
    await holds(c, { [`${key}-replaced`]: { n: 1 } })
    await c.insert(key, { n: 2 })
  },
}

async function main() {
  let cluster
  try {
    cluster = await connected(username, password)
    const collection = cluster.bucket(bucketName).defaultCollection()
    const pinged = await cluster.bucket(bucketName).ping({ serviceTypes: [couchbase.ServiceType.KeyValue] })
    assert.ok(Object.values(pinged.services).flat().every((report) => report.state === couchbase.PingState.Ok), JSON.stringify(pinged))
    console.log('ok connect')
    await Promise.all(Object.entries(checks).map(([name, check]) => one(name, check, collection, cluster)))
  } catch (error) {
    console.log(`not ok connect: ${describe(error)}`)
  }
  if (cluster) {
    const closed = await Promise.race([cluster.close().then(() => 'ok close', (error) => `not ok close: ${describe(error)}`), sleep(5000)])
    console.log(closed || 'not ok close: not closed within 5 s')
  }
  process.exit(0)
}

function describe(error) {
  const cause = error.cause ? `, cause: ${describe(error.cause)}` : ''
  return `${error.constructor.name} ${error.message}`.replaceAll('\n', ' ') + cause
}

async function one(name, check, collection, cluster) {
  const key = `node::${name}`
  try {
    await collection.remove(key).catch(() => {})
    await check(collection, key, cluster.transactions(), cluster)
    console.log(`ok ${name}`)
  } catch (error) {
    console.log(`not ok ${name}: ${describe(error)}`)
  }
}

main()
