// The worker of tests/system/test_node.py: node main.js ADDRESS PROTOS FILE SLOTS
"use strict";

const { once } = require("node:events");
const { appendFileSync } = require("node:fs");
const { Worker, nack, snooze, abandon, poison } = require("./worker");

const [address, protos, file, slots] = process.argv.slice(2);
const hold = (signal) => (signal.aborted ? null : once(signal, "abort"));
const releases = [];
process.on("SIGUSR1", () => releases.splice(0).forEach((release) => release()));

const HANDLERS = {
  "n:add": ({ payload }) => ({ next: payload.n + 1 }),
  "n:fail": () => {
    throw new TypeError("no number");
  },
  "n:poison": () => poison("never", "BAD"),
  "n:nack": () => nack("later"),
  "n:snooze": () => snooze(600),
  "n:abandon": ({ attempt, priority }) => (releases.length === 0 && releases.push(() => {}) ? abandon() : { attempt, priority }),
  "n:cancel": async ({ signal }) => {
    await hold(signal);
    throw new Error("stopped");
  },
  // Runs until SIGUSR1.
  "n:hold": ({ extend }) => {
    extend(600);
    return new Promise((release) => releases.push(() => release("released")));
  },
};

async function handle(task) {
  appendFileSync(file, `${task.kind}=${task.payload.n ?? ""} `);
  return HANDLERS[task.kind](task);
}

const kinds = Object.keys(HANDLERS).map((kind) => ({ kind, queue: "far" }));
kinds[0] = { ...kinds[0], max_attempts: 3, redact: ["$.card"] };
const worker = new Worker({
  addresses: address.split(","), protos, handle, kinds, name: "node-1", queues: ["far"], slots: Number(slots),
});
process.on("SIGTERM", () => {
  worker.close();
  console.log("leaving");
});
worker.run().then(
  () => console.log("left"),
  (error) => {
    console.error(error);
    process.exitCode = 1;
  },
);
