// Performs what it reads, one request per line, as tests/go/replicas does.
// usage: node replicas.js CONNECTION USER PASSWORD BUCKET
'use strict'

const couchbase = require('couchbase')
const readline = require('node:readline')

const [connection, username, password, bucketName] = process.argv.slice(2)
const timeout = 3000

const role = (read) => (read.isReplica ? 'replica' : 'active')

async function perform(collection, [verb, key, value, level]) {
  switch (verb) {
    case 'set': {
      const durabilityLevel = level === 'majority' ? couchbase.DurabilityLevel.Majority : couchbase.DurabilityLevel.None
      await collection.upsert(key, value, { timeout, durabilityLevel })
      return ''
    }
    case 'get':
      return (await collection.get(key, { timeout })).content
    case 'any': {
      const read = await collection.getAnyReplica(key, { timeout })
      return `${read.content} ${role(read)}`
    }
    case 'all': {
      const all = await collection.getAllReplicas(key, { timeout })
      return all.map((read) => `${read.content}:${role(read)}`).sort().join(' ')
    }
  }
  throw new Error(`unknown request ${verb}`)
}

async function main() {
  const cluster = await couchbase.connect(connection, { username, password })
  const collection = cluster.bucket(bucketName).defaultCollection()
  for await (const line of readline.createInterface({ input: process.stdin })) {
    try {
      console.log(`ok ${await perform(collection, line.split(' '))}`.trim())
    } catch (error) {
      console.log(`error ${error.name} ${error.message}`.replaceAll('\n', ' '))
    }
  }
  process.exit(0)
}

main()
