// What the tests have KafkaJS do: `node scripts.js <name> <arguments as JSON>` prints the outcome as JSON.
'use strict'

const LZ4Codec = require('@2l/kafkajs-lz4')
const { CompressionCodecs, CompressionTypes, ConfigResourceTypes, Kafka, logLevel } = require('kafkajs')
const SnappyCodec = require('kafkajs-snappy')
const { ZstdCodec } = require('zstd-codec')

// KafkaJS brings gzip; the others are other people's codecs, plugged in the way its documentation says.
CompressionCodecs[CompressionTypes.Snappy] = SnappyCodec
CompressionCodecs[CompressionTypes.LZ4] = new LZ4Codec().codec
// The streaming form: the other wants the size of the content in the frame, which librdkafka leaves out.
const zstd = new Promise(resolve => ZstdCodec.run(found => resolve(new found.Streaming())))
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async encoder => Buffer.from((await zstd).compress(encoder.buffer)),
  decompress: async buffer => Buffer.from((await zstd).decompress(buffer)),
})
const CODECS = { none: 0, gzip: 1, snappy: 2, lz4: 3, zstd: 4 }

const text = bytes => (bytes === null || bytes === undefined ? null : bytes.toString())

const plain = ({ topic, partition, message }) => ({
  topic,
  partition,
  offset: Number(message.offset),
  timestamp: Number(message.timestamp),
  key: text(message.key),
  value: text(message.value),
  headers: Object.fromEntries(Object.entries(message.headers).map(([name, value]) => [name, text(value)])),
})

async function using(client, work) {
  await client.connect()
  try {
    return await work(client)
  } finally {
    await client.disconnect()
  }
}

// Run a consumer until `count` records came; `prepare` is called once it runs.
async function consume(kafka, { topic, group, count, commit = true, isolation = 'read_committed' }, prepare) {
  const consumer = kafka.consumer({
    groupId: group,
    sessionTimeout: 10000,
    readUncommitted: isolation === 'read_uncommitted',
  })
  return using(consumer, async () => {
    await consumer.subscribe({ topics: [topic], fromBeginning: true })
    const records = []
    const joined = new Promise(resolve => consumer.on(consumer.events.GROUP_JOIN, resolve))
    const complete = new Promise((resolve, reject) => {
      consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
      consumer
        .run({
          autoCommit: commit,
          autoCommitThreshold: 1,
          eachMessage: async record => {
            if (records.length < count) records.push(plain(record))
            if (records.length === count) resolve()
          },
        })
        .catch(reject)
    })
    if (prepare !== undefined) {
      await joined
      await prepare(consumer)
    }
    await complete
    await consumer.stop()
    return records
  })
}

const scripts = {
  produce: (kafka, { topic, messages, codec = 'none', acks = -1, idempotent = false }) =>
    using(kafka.producer({ idempotent }), producer =>
      producer.send({ topic, acks, compression: CODECS[codec], messages }),
    ),

  consume: (kafka, wanted) => consume(kafka, wanted),

  consumeFrom: (kafka, wanted) =>
    consume(kafka, wanted, consumer =>
      consumer.seek({ topic: wanted.topic, partition: 0, offset: String(wanted.offset) }),
    ),

  // Two members that share the partitions; resolves to what each was given.
  share: (kafka, { topic, group, partitions }) => {
    const members = [1, 2].map(() => kafka.consumer({ groupId: group, sessionTimeout: 10000, rebalanceTimeout: 10000 }))
    const owned = members.map(() => [])
    return Promise.all(members.map(member => member.connect()))
      .then(
        () =>
          new Promise((resolve, reject) => {
            members.forEach((member, index) => {
              member.on(member.events.GROUP_JOIN, ({ payload }) => {
                owned[index] = payload.memberAssignment[topic] || []
                // One may have told of a generation before, so that both are said to own the same ones.
                const all = new Set(owned.flat())
                if (owned.every(some => some.length > 0) && all.size === partitions) resolve(owned)
              })
              member
                .subscribe({ topics: [topic], fromBeginning: true })
                .then(() => member.run({ eachMessage: async () => {} }))
                .catch(reject)
            })
          }),
      )
      .finally(() => Promise.all(members.map(member => member.disconnect())))
  },

  // One transaction after the other: each is `{ values, commit }`, or with `offset` commits that offset of `source`.
  transact: (kafka, { topic, transactionalId, transactions, group, source }) =>
    using(kafka.producer({ transactionalId, idempotent: true, maxInFlightRequests: 1 }), async producer => {
      for (const { values, commit, offset } of transactions) {
        const transaction = await producer.transaction()
        await transaction.send({ topic, messages: values.map(value => ({ value })) })
        if (offset !== undefined) {
          await transaction.sendOffsets({
            consumerGroupId: group,
            topics: [{ topic: source, partitions: [{ partition: 0, offset: String(offset) }] }],
          })
        }
        await (commit ? transaction.commit() : transaction.abort())
      }
      return transactions.length
    }),

  // Calls of the admin client, in order; resolves to the list of their results, an error as `{ error }`.
  admin: (kafka, { calls }) =>
    using(kafka.admin(), async admin => {
      const results = []
      for (const [name, argument] of calls) {
        try {
          const call = Array.isArray(argument) && name !== 'describeGroups' && name !== 'deleteGroups'
            ? admin[name](...argument)
            : admin[name](argument)
          results.push((await call) ?? null)
        } catch (error) {
          results.push({ error: error.type || error.name })
        }
      }
      return results
    }),

  resourceTypes: async () => ConfigResourceTypes,
}

// Everything that the client logs, a line each: tests show the end of it when a script fails.
const LINE_MAX = 400
const toStderr = () => ({ namespace, label, log }) => {
  const { timestamp, logger, message, ...more } = log
  const line = `${timestamp} ${label} ${namespace} ${message} ${JSON.stringify(more)}`
  process.stderr.write(`${line.slice(0, LINE_MAX)}\n`)
}

async function main([name, words]) {
  const { client, logs, ...rest } = JSON.parse(words)
  const logging = logs ? { logLevel: logLevel.DEBUG, logCreator: toStderr } : { logLevel: logLevel.ERROR }
  const kafka = new Kafka({ clientId: 'compat', ...logging, ...client })
  process.stdout.write(JSON.stringify(await scripts[name](kafka, rest)))
}

main(process.argv.slice(2)).then(
  () => process.exit(0),
  error => {
    console.error(error)
    process.exit(1)
  },
)
