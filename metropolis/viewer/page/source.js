// Where the data comes from: the server that serves this page, or the page itself (`--out`).
// Chunks are described in docs/viewer.md.

const CHUNK_BYTES_MAX = 192 << 20;
const FILLED_MAX = 0.75 * CHUNK_BYTES_MAX;
const MANY_BYTES = CHUNK_BYTES_MAX / 8;

async function unzipped(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

// Chunks embedded in the page, as gzip in base64: <script type="text/plain" data-chunk="0/meta/0">.
class EmbeddedSource {
  constructor(elements) {
    this.texts = new Map(elements.map((each) => [each.dataset.chunk, each]));
  }

  async bytes(path) {
    const element = this.texts.get(path);
    if (element === undefined) throw new Error("This part is not contained in the file.");
    return unzipped(element.textContent.trim());
  }

  get isServed() {
    return false;
  }
}

class ServedSource {
  constructor() {
    this.token = new URLSearchParams(location.hash.slice(1)).get("token") ?? "";
  }

  async request(path, options = {}) {
    const headers = { Authorization: `Bearer ${this.token}` };
    const response = await fetch(path, { headers, cache: "no-store", ...options });
    if (response.ok) return response;
    let sentence = `The server answered ${response.status}.`;
    try {
      sentence = (await response.json()).error ?? sentence;
    } catch {
      // not JSON: the status says enough
    }
    throw new Error(sentence);
  }

  async bytes(path) {
    return (await this.request(`data/${path}`)).arrayBuffer();
  }

  get isServed() {
    return true;
  }

  // Calls `receive(event)` for each event of a live run, until the server ends.
  async follow(receive) {
    const response = await this.request("events");
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const data = part.split("\n").filter((line) => line.startsWith("data:"));
        if (data.length) receive(JSON.parse(data.map((line) => line.slice(5)).join("\n")));
      }
    }
  }

  control(command) {
    return this.request(`control/${command}`, { method: "POST" });
  }
}

export function openSource() {
  const embedded = [...document.querySelectorAll("script[data-chunk]")];
  return embedded.length ? new EmbeddedSource(embedded) : new ServedSource();
}

// Decoded chunks, the least recently used of which are dropped beyond CHUNK_BYTES_MAX.
export class Chunks {
  constructor(source, onLoad) {
    this.source = source;
    this.onLoad = onLoad;
    this.kept = new Map(); // path -> {value, bytes, isNew}, in order of use
    this.loading = new Map(); // path -> promise
    this.failed = new Map(); // path -> Error
    this.bytes = 0;
  }

  // The decoded chunk; while it is loaded the one before, or null. `onLoad` is called when it has come.
  // `isOptional`: it is one of very many, which are not fetched beyond FILLED_MAX: else each would
  // displace another one, without end.
  get(path, decode, isOptional = false) {
    const found = this.kept.get(path);
    if (found !== undefined) {
      this.kept.delete(path);
      this.kept.set(path, found);
    }
    const isFull = isOptional && found === undefined && this.bytes > FILLED_MAX;
    if (!(isFull || found?.isNew || this.loading.has(path) || this.failed.has(path))) {
      const tell = () => this.onLoad(path);
      this.load(path, decode).then(tell, tell);
    }
    return found?.value ?? null;
  }

  // Whether as many chunks of that size are optional.
  areMany(chunks, bytes) {
    return chunks * bytes > MANY_BYTES;
  }

  // A promise of the decoded chunk. One that could not be had is not asked for again, until `renew`.
  load(path, decode) {
    const found = this.kept.get(path);
    if (found?.isNew) return Promise.resolve(found.value);
    if (this.failed.has(path)) return Promise.reject(this.failed.get(path));
    let promise = this.loading.get(path);
    if (promise === undefined) {
      promise = this.fetched(path, decode, () => this.loading.get(path) === promise);
      this.loading.set(path, promise);
    }
    return promise;
  }

  // `isLast()`: whether the chunk has not changed since it was asked for.
  async fetched(path, decode, isLast) {
    try {
      const buffer = await this.source.bytes(path);
      const value = decode(buffer);
      if (isLast()) this.keep(path, value, buffer.byteLength);
      return value;
    } catch (error) {
      if (isLast()) this.failed.set(path, error);
      throw error;
    } finally {
      if (isLast()) this.loading.delete(path);
    }
  }

  keep(path, value, bytes) {
    this.bytes += bytes - (this.kept.get(path)?.bytes ?? 0);
    this.kept.delete(path);
    this.kept.set(path, { value, bytes, isNew: true });
    for (const [other, each] of this.kept) {
      if (this.bytes <= CHUNK_BYTES_MAX || other === path) break;
      this.bytes -= each.bytes;
      this.kept.delete(other);
    }
  }

  // A chunk has changed: it is fetched again at its next use, and shown as it was until then.
  renew(path) {
    const found = this.kept.get(path);
    if (found !== undefined) found.isNew = false;
    this.loading.delete(path);
    this.failed.delete(path);
  }
}

export const asFloats = (buffer) => new Float32Array(buffer);
export const asJSON = (buffer) => JSON.parse(new TextDecoder().decode(buffer));
