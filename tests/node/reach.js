// Stores and reads a document, then queries; prints the document and the query's error.
// usage: node reach.js CONNECTION USER PASSWORD BUCKET
'use strict'

const couchbase = require('couchbase')

const [connection, username, password, bucketName] = process.argv.slice(2)

async function main() {
  const cluster = await couchbase.connect(connection, { username, password })
  const collection = cluster.bucket(bucketName).defaultCollection()
  await collection.upsert('reached', { by: 'Node.js' })
  console.log(`reached by ${(await collection.get('reached')).content.by}`)
  await cluster.query('SELECT 1').catch((error) => console.log(error.message, JSON.stringify(error.cause)))
  process.exit(0)
}

main()
