// Requests to the service: the token, asking again when it is busy, and errors in a person's words.

import { sleep } from "./dom.js";
import { inWords } from "./words.js";

const TOKEN = "anytimecl.token";

class Refused extends Error {
  constructor(status, detail) {
    super(inWords(status, detail));
    this.status = status;
  }
}

let onDenied = () => {};
export const whenDenied = (what) => { onDenied = what; };
export const useToken = (token) => sessionStorage.setItem(TOKEN, token);

export async function call(method, path, body, headers = {}) {
  const token = sessionStorage.getItem(TOKEN);
  const sent = { ...headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  for (let attempt = 0; ; attempt++) {
    let response;
    try {
      response = await fetch(`v1/${path}`, { method, body, headers: sent, cache: "no-store" });
    } catch {
      throw new Refused(0, "");
    }
    if (response.ok) return response;
    if (response.status === 429 && attempt < 8) { // nothing was taken on: ask again
      await sleep(1000 * Math.min(10, Number(response.headers.get("Retry-After")) || 1));
      continue;
    }
    const told = await response.json().catch(() => ({}));
    if (response.status === 401) onDenied();
    throw new Refused(response.status, told.detail || "");
  }
}

export const ask = async (method, path, body, headers) => (await call(method, path, body, headers)).json();

export const tell = (method, path, data) =>
  ask(method, path, JSON.stringify(data), { "Content-Type": "application/json" });

// A retry with the same key is learned once.
export const freshKey = () =>
  [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
