// Asks by the types that openapi-typescript makes; test_generated_clients.py compiles and runs it.
import createClient from "openapi-fetch";
import type { paths } from "./api.js";

declare const process: { argv: string[] };
const client = createClient<paths>({ baseUrl: process.argv[2] });
const { readFileSync } = await import("node:fs" as string); // without the types of Node.js
const img: string = readFileSync(process.argv[3], "base64");

const texts = await client.POST("/infer/resnet", {
  body: { payload: { img }, parameters: { top_k: 2 } },
});
const objects = await client.POST("/infer/yolov5", {
  params: { query: { format: "objects" } }, body: { payload: { img } },
});
const cup = objects.data!.result[0]!;
if (Array.isArray(cup)) throw new Error("a row came");
const refused = await client.POST("/infer/resnet", { body: { payload: { img: "no picture" } } });
const models = await client.GET("/models");
const result: (string | { index: number; score: number; label?: string })[] = texts.data!.result;
console.log(JSON.stringify({
  texts: result,
  cup: [cup.label, cup.box.x1],
  error: [refused.error!.error.code, refused.error!.error.hint],
  models: models.data!.models.map((one) => one.modelName),
}));

export async function mistakes() {
  // @ts-expect-error  a number is no picture
  await client.POST("/infer/resnet", { body: { payload: { img: 1 } } });
  // @ts-expect-error  a text is no number of classes
  await client.POST("/infer/resnet", { body: { payload: { img }, parameters: { top_k: "1" } } });
  // @ts-expect-error  an object has no such field
  cup.colour;
}
