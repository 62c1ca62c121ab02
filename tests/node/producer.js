// The producer of tests/system/test_node.py: node producer.js ADDRESS PROTOS
//
// It enqueues one job, the same request again, many on a stream, and one whose kind is no name. Then it
// waits for the first job and cancels another one. It prints what the gateway answered, as JSON.
"use strict";

const { once } = require("node:events");
const { promisify } = require("node:util");
const grpc = require("@grpc/grpc-js");
const { load } = require("./worker");

const [address, protos] = process.argv.slice(2);
const { ProducerService } = load(protos, "producer");
const client = new ProducerService(address, grpc.credentials.createInsecure());
const call = (name) => promisify(client[name].bind(client));
const job = (n, more = {}) => ({ kind: "n:add", queue: "far", payload: Buffer.from(JSON.stringify({ n })), ...more });

async function stream(requests) {
  const open = client.EnqueueStream();
  const answers = [];
  open.on("data", (answer) => answers.push(answer));
  for (const request of requests) {
    if (!open.write(request)) await once(open, "drain");
  }
  open.end();
  await once(open, "end");
  return answers;
}

async function main() {
  const request = { jobs: [job(1), job(2)], idempotency_key: "order-1" };
  const first = await call("Enqueue")(request);
  const again = await call("Enqueue")(request); // as after a lost answer
  const refused = await call("Enqueue")({ jobs: [job(3), job(4, { kind: "No Name" })] }).catch((error) => error);
  const streamed = await stream(
    [5, 6, 7].map((n, index) => ({ number: index + 1, jobs: [job(n), job(n + 10)] })).concat({
      number: 4,
      jobs: [job(8, { kind: "No Name" })],
    }),
  );
  const { job: done } = await call("GetJob")({ id: first.ids[0], wait_seconds: 60 });
  const { ids: [later] } = await call("Enqueue")({ jobs: [job(9, { delay_seconds: 3600 })] });
  const cancelled = await call("CancelJob")({ id: later, reason: "a test" });
  const missing = await call("GetJob")({ id: "999999999" }).catch((error) => error);
  console.log(
    JSON.stringify({
      first, again, streamed, cancelled, done: JSON.parse(done.toString()),
      refused: grpc.status[refused.code], missing: grpc.status[missing.code],
    }),
  );
  client.close();
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
