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

const checks = {
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
  batch: async (c, key) => {
    const keys = Array.from({ length: 500 }, (_, n) => `${key}-${n}`)
    await Promise.all(keys.map((k, n) => c.upsert(k, { n })))
    const read = await Promise.all(keys.map((k) => c.get(k)))
    read.forEach((result, n) => assert.deepEqual(result.content, { n }))
    await Promise.all(keys.map((k) => c.remove(k)))
  },
}

async function main() {
  const timeouts = { kvTimeout: 8000, kvDurableTimeout: 8000, connectTimeout: 10000 }
  let cluster
  try {
    cluster = await couchbase.connect(connection, { username, password, timeouts, security: { trustStorePath } })
    const collection = cluster.bucket(bucketName).defaultCollection()
    const pinged = await cluster.bucket(bucketName).ping({ serviceTypes: [couchbase.ServiceType.KeyValue] })
    assert.ok(Object.values(pinged.services).flat().every((report) => report.state === couchbase.PingState.Ok), JSON.stringify(pinged))
    console.log('ok connect')
    await Promise.all(Object.entries(checks).map(([name, check]) => one(name, check, collection)))
  } catch (error) {
    console.log(`not ok connect: ${describe(error)}`)
  }
  await Promise.race([cluster && cluster.close(), sleep(3000)])
  process.exit(0)
}

function describe(error) {
  return `${error.constructor.name} ${error.message}`.replaceAll('\n', ' ')
}

async function one(name, check, collection) {
  const key = `node::${name}`
  try {
    await collection.remove(key).catch(() => {})
    await check(collection, key)
    console.log(`ok ${name}`)
  } catch (error) {
    console.log(`not ok ${name}: ${describe(error)}`)
  }
}

main()
