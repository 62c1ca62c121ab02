// A remote worker in Node, in the form that docs/how-to/write/gateway-clients.md describes: one stream, any number of slots.
//
//     const { Worker, nack } = require("./worker");
//     const worker = new Worker({ addresses: ["127.0.0.1:9091"], protos: "handlers/_remote/proto", handle });
//     process.on("SIGTERM", () => worker.close());
//     await worker.run();
//
// `handle(task)` returns the result, or throws, or returns what nack, snooze, abandon or poison return.
// It can stop early when `task.signal` aborts. The session and its tasks outlive a break of the stream.
"use strict";

const { once } = require("node:events");
const { setTimeout: sleep } = require("node:timers/promises");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const FATAL = new Set([
  grpc.status.UNAUTHENTICATED,
  grpc.status.PERMISSION_DENIED,
  grpc.status.INVALID_ARGUMENT,
  grpc.status.FAILED_PRECONDITION,
  grpc.status.UNIMPLEMENTED,
]);
const BACKOFF = [100, 10_000]; // milliseconds: the first wait, doubled up to the second

function load(protos, file) {
  const options = { keepCase: true, longs: String, enums: String, defaults: true, oneofs: true, includeDirs: [protos] };
  return grpc.loadPackageDefinition(loader.loadSync(`jobherd/worker/v1/${file}.proto`, options)).jobherd.worker.v1;
}

class Disposition {
  constructor(outcome) {
    this.outcome = outcome;
  }
}
const nack = (reason = "", delay_seconds = undefined) => new Disposition({ nack: { reason, delay_seconds } });
const snooze = (delay_seconds) => new Disposition({ snooze: { delay_seconds } });
const abandon = () => new Disposition({ abandon: {} });
const poison = (error, code = "") => new Disposition({ failed: { error, code, poison: true } });

const keyOf = (ref) => `${ref.task_id}/${ref.claim}`;

class Worker {
  constructor({ addresses, protos, handle, token = "", name = "", kinds = [], queues = [], slots = 1 }) {
    this._addresses = addresses;
    this._service = load(protos, "worker").WorkerService;
    this._handle = handle;
    this._hello = { token, worker_id: name, kinds, client: "node-example/1" };
    this._wanted = { kinds: kinds.map((each) => each.kind), queues, count: 1 };
    this._session = "";
    this._held = new Map(); // tasks that were received and whose results are not confirmed, by task and claim
    this._readys = new Map(); // Readys that are not answered, by number
    this._results = []; // results that this stream has not sent
    this._sent = new Map(); // results that are not confirmed, by the number of their batch
    this._number = 0;
    this._closing = false;
    this._state = null; // of the present stream
    this._wake = () => {};
    for (let slot = 0; slot < slots; slot += 1) this._ask();
  }

  // Runs until close() and until every result is confirmed. Rejects if the gateway rejects the client.
  async run() {
    let wait = BACKOFF[0];
    for (let turn = 0; !this._isDone(); turn += 1) {
      const opened = await this._stream(this._addresses[turn % this._addresses.length]);
      if (this._isDone()) break;
      wait = opened ? BACKOFF[0] : Math.min(wait * 2, BACKOFF[1]);
      await sleep(wait * Math.random());
    }
  }

  // Takes no more tasks. run() returns once the running ones are reported.
  close() {
    this._closing = true;
    this._wake();
  }

  _isDone() {
    return this._closing && this._held.size === 0;
  }

  _ask() {
    this._number += 1;
    this._readys.set(this._number, { ...this._wanted, number: this._number });
    this._state?.unsent.push(this._number);
  }

  // -- one stream

  async _stream(address) {
    const client = new this._service(address, grpc.credentials.createInsecure(), {
      "grpc.keepalive_time_ms": 10_000,
      "grpc.keepalive_timeout_ms": 5_000,
    });
    const stream = client.Work();
    const state = { open: false, draining: false, ended: false, unsent: [], taken: new Set(), extensions: [], batch: 0 };
    this._state = state;
    const ended = new Promise((resolve) => {
      stream.on("error", resolve); // comes once, also after "end"
      stream.on("status", resolve);
    });
    stream.on("data", (response) => this._receive(response, state));
    ended.then(() => {
      state.ended = true;
      this._wake();
    });
    // What an earlier stream sent and the gateway did not confirm is sent again.
    this._results = [...this._held.values()].filter((held) => held.result).map((held) => held.result);
    this._sent.clear();
    state.unsent = [...this._readys.keys()];
    const held = [...this._held.values()].map((each) => each.ref);
    stream.write({ hello: { ...this._hello, session: this._session, held } });
    await this._pump(stream, state);
    const { code, details } = await ended;
    client.close();
    if (code === grpc.status.NOT_FOUND) {
      this._session = ""; // it has ended, and its tasks run elsewhere
      for (const each of [...this._held.values()]) this._lose(each.ref);
    } else if (FATAL.has(code)) {
      throw new Error(`the gateway rejects this client: ${details}`);
    }
    return state.open;
  }

  // Sends what waits, as long as the stream lasts. grpc-js buffers without limit unless "drain" is awaited.
  async _pump(stream, state) {
    while (!state.ended) {
      const woken = new Promise((resolve) => (this._wake = resolve));
      const message = state.open && this._next(state);
      if (message) {
        if (!stream.write(message)) await Promise.race([once(stream, "drain"), woken]);
      } else if (state.open && this._isFinished(state)) {
        stream.end();
        return;
      } else {
        await woken;
      }
    }
  }

  _isFinished(state) {
    const leaves = this._closing ? this._readys.size === 0 : state.draining;
    return leaves && this._held.size === 0;
  }

  _next(state) {
    if (this._results.length) {
      const results = this._results.splice(0, 500);
      state.batch += 1;
      this._sent.set(state.batch, results);
      const more = !this._closing && !state.draining && state.unsent.length;
      const ready = more ? this._readys.get(state.unsent.shift()) : undefined;
      return { results: { number: state.batch, results, ready } };
    }
    if (state.extensions.length) return { heartbeat: state.extensions.shift() };
    if (this._closing) {
      for (const number of state.unsent.splice(0)) this._readys.delete(number);
      const [number] = [...this._readys.keys()].filter((each) => !state.taken.has(each));
      if (number === undefined) return undefined;
      state.taken.add(number);
      return { ready: { number, count: 0 } }; // takes it back
    }
    if (state.draining || !state.unsent.length) return undefined;
    return { ready: this._readys.get(state.unsent.shift()) };
  }

  _receive(response, state) {
    const message = response[response.event];
    switch (response.event) {
      case "hello_ack":
        state.open = true;
        this._session = message.session;
        message.lost.forEach((ref) => this._lose(ref));
        break;
      case "tasks":
        if (message.ack) this._confirm(message.ack);
        this._readys.delete(Number(message.ready));
        message.tasks.forEach((task) => this._start(task));
        if (!message.tasks.length && !this._closing) this._ask(); // the gateway drains: for the next stream
        break;
      case "result_ack":
        this._confirm(message);
        break;
      case "cancel":
        if (message.reason === "REASON_LOST") this._lose(message.task);
        else this._held.get(keyOf(message.task))?.abort.abort(message.reason);
        break;
      case "heartbeat_ack":
        message.lost.forEach((ref) => this._lose(ref));
        break;
      case "drain":
        state.draining = true;
        break;
      default: // of a newer gateway
    }
    this._wake();
  }

  // -- tasks

  async _start(task) {
    const ref = { task_id: task.id, claim: task.claim };
    const held = { ref, abort: new AbortController(), result: null };
    this._held.set(keyOf(ref), held);
    const began = performance.now();
    let outcome;
    try {
      const payload = JSON.parse(task.payload.toString());
      const extend = (seconds) => {
        this._state.extensions.push({ number: 1, tasks: [ref], extend_seconds: seconds });
        this._wake();
      };
      const ending = await this._handle({ ...task, payload, signal: held.abort.signal, extend });
      outcome =
        ending instanceof Disposition
          ? ending.outcome
          : { completed: { result: ending === undefined ? Buffer.alloc(0) : Buffer.from(JSON.stringify(ending)) } };
    } catch (error) {
      outcome = this._failure(error, held.abort.signal);
    }
    if (this._held.get(keyOf(ref)) === held) {
      held.result = { ...ref, ran_seconds: (performance.now() - began) / 1000, ...outcome };
      this._results.push(held.result);
    }
    if (!this._closing) this._ask();
    this._wake();
  }

  _failure(error, signal) {
    if (signal.reason === "REASON_CANCELLED") return { cancelled: {} };
    const code = signal.reason === "REASON_TIMEOUT" ? "JOB_TIMEOUT" : "";
    return { failed: { error: String(error?.message ?? error), code, traceback: String(error?.stack ?? "") } };
  }

  // The gateway has recorded these results.
  _confirm(ack) {
    for (const [number, results] of this._sent) {
      if (number > Number(ack.up_to)) break;
      this._sent.delete(number);
      results.forEach((result) => this._held.delete(keyOf(result)));
    }
    for (const refusal of ack.refusals) console.error(`refused: ${refusal.reason} ${refusal.message}`);
  }

  // Another worker has the task, or will have it: its result must not be reported.
  _lose(ref) {
    const held = this._held.get(keyOf(ref));
    this._held.delete(keyOf(ref));
    held?.abort.abort("REASON_LOST");
    this._results = this._results.filter((result) => keyOf(result) !== keyOf(ref));
  }
}

module.exports = { Worker, load, nack, snooze, abandon, poison };
