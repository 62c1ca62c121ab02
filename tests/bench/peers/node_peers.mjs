// Graphile Worker (local queue, batched completion) and pg-boss (fetched in batches): `node_peers.mjs NAME WORD ...`, words as in notes.py.
// Run in the folder that their packages are installed in.

import fs from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(`${process.cwd()}/package.json`);
const { PEER_DSN: dsn, PEER_NOTES: folder } = process.env;
const [name, word, ...rest] = process.argv.slice(2);
const SLICE = 5000;

const now = () => (performance.timeOrigin + performance.now()) / 1000;
const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
const payload = (n) => ({ n, user_id: 1234567, action: "send_welcome_email", locale: "en_GB", ref: "ab12cd34ef56" });

let begun = false;
const jobs = {
  noop() {
    if (begun) return;
    begun = true;
    fs.writeFileSync(`${folder}/first.${process.pid}`, `${now()}`);
  },
  stamp({ n }) {
    const at = now();
    fs.appendFileSync(`${folder}/stamps.${process.pid}`, `${n} ${at}\n`);
  },
};

const peers = {
  async graphile() {
    const { Logger, makeWorkerUtils, run } = require("graphile-worker");
    const producer = await makeWorkerUtils({ connectionString: dsn, logger: new Logger(() => () => {}) });
    return {
      setup: () => producer.migrate(),
      load: (part) => producer.addJobs(part.map((each) => ({ identifier: "noop", payload: each }))),
      put: (each) => producer.addJob("stamp", each),
      async work(purpose) {
        const batches = { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };
        const own = { concurrentJobs: 24, maxPoolSize: 25, ...(purpose === "drain" ? batches : {}) };
        const worker = { connectionString: dsn, ...(purpose === "default" ? {} : own) };
        const taskList = Object.fromEntries(Object.entries(jobs).map(([kind, job]) => [kind, async (each) => job(each)]));
        await run({ taskList, logger: new Logger(() => () => {}), preset: { worker } });
        await new Promise(() => {});
      },
    };
  },
  async pgboss() {
    const found = require("pg-boss");
    const boss = new (found.PgBoss ?? found)({ connectionString: dsn, max: 10 });
    boss.on("error", (problem) => console.error(problem.message));
    await boss.start();
    const loop = async (kind, batchSize) => {
      for (;;) {
        const batch = (await boss.fetch(kind, { batchSize })) ?? [];
        for (const each of batch) jobs[kind](each.data);
        if (batch.length) await boss.complete(kind, batch.map((each) => each.id));
        else await pause(0.5); // the shortest interval its own workers poll at
      }
    };
    return {
      async setup() {
        for (const kind of Object.keys(jobs)) await boss.createQueue(kind);
      },
      load: (part) => boss.insert("noop", part.map((data) => ({ data }))),
      put: (data) => boss.send("stamp", data),
      work: (purpose) => Promise.all(Object.keys(jobs).map((kind) => loop(kind, purpose === "drain" ? 1000 : 1))),
    };
  },
};

const peer = await peers[name]();
if (word === "setup") await peer.setup();
if (word === "work") await peer.work(rest[0]);
if (word === "load") {
  const count = Number(rest[0]);
  for (let first = 0; first < count; first += SLICE) {
    await peer.load(Array.from({ length: Math.min(SLICE, count - first) }, (_, n) => payload(first + n)));
  }
}
if (word === "offer") {
  const sent = [];
  for (let n = 0; n < Number(rest[0]); n++) {
    sent.push([n, now()]);
    await peer.put(payload(n));
    await pause(Number(rest[1]));
  }
  console.log(JSON.stringify(sent));
}
process.exit(0);
