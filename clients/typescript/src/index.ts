// Every path, request and answer has its type from `schema.ts`, which is generated.
import createClient, { type Client } from "openapi-fetch";
import type { components, paths } from "./schema.js";

export type { components, paths } from "./schema.js";
export type Prediction = components["schemas"]["PredictionTold"];
export type Learned = components["schemas"]["LearnTold"];

export interface Options {
  token?: string;
  memory?: string; // without it, the service's first
}

export class ServiceError extends Error {
  constructor(
    readonly status: number,
    detail: string,
  ) {
    super(detail);
  }
}

/** A memory of a service. What has no method of its own is asked through `http`. */
export class Memory {
  readonly http: Client<paths>;
  private readonly memory: string;

  constructor(url: string, options: Options = {}) {
    const headers = options.token ? { Authorization: `Bearer ${options.token}` } : {};
    this.http = createClient<paths>({ baseUrl: url, headers });
    this.memory = options.memory ?? "default";
  }

  /** What an image shows, among the labels given or all that were learned. */
  async predict(image: Uint8Array, labels?: string[]): Promise<Prediction> {
    const body = { images: [base64(image)], ...(labels && { labels }) };
    const { data, error, response } = await this.http.POST("/v1/memories/{memory}/predict", {
      params: { path: { memory: this.memory } },
      body: body as never, // or a form: the description allows both
    });
    const first = data?.predictions[0];
    if (!first) throw failed(response, error);
    return first;
  }

  /** Durable when it resolves; the same key is learned once. */
  async learn(image: Uint8Array, label: string, key: string = crypto.randomUUID()): Promise<Learned> {
    const { data, error, response } = await this.http.POST("/v1/memories/{memory}/learn", {
      params: { path: { memory: this.memory }, header: { "Idempotency-Key": key } },
      body: { image: base64(image), label } as never,
    });
    if (!data) throw failed(response, error);
    return data;
  }

  /** Every label, and how many examples it has. */
  async labels(): Promise<Map<string, number>> {
    const { data, error, response } = await this.http.GET("/v1/memories/{memory}/labels", {
      params: { path: { memory: this.memory } },
    });
    if (!data) throw failed(response, error);
    return new Map(data.labels.map((one) => [one.label, one.examples]));
  }
}

function failed(response: Response, error: unknown): ServiceError {
  const detail = (error as { detail?: string } | undefined)?.detail;
  return new ServiceError(response.status, detail ?? response.statusText);
}

function base64(bytes: Uint8Array): string {
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}
