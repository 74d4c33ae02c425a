// `ai_sdk.mjs PACKAGES CAPABILITY URL KEY MODEL QUESTION`: prints in JSON what Vercel's AI SDK gave; see matrix_program.py.
import { createRequire } from "node:module";

const [packages, capability, url, key, name, question] = process.argv.slice(2);
const require = createRequire(`${packages}/package.json`);
const { generateObject, generateText, jsonSchema, stepCountIs, streamText, tool } = require("ai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");

const provider = createOpenAICompatible({
  name: "semspec",
  baseURL: `${url}/v1`,
  apiKey: key,
  supportsStructuredOutputs: true,
});
const asked = { model: provider(name), prompt: question, maxRetries: 0 };
const schema = (properties) =>
  jsonSchema({ type: "object", properties, required: Object.keys(properties), additionalProperties: false });

const capabilities = {
  async chat() {
    return (await generateText(asked)).text;
  },
  async stream() {
    const parts = [];
    for await (const part of streamText(asked).textStream) parts.push(part);
    return parts;
  },
  async tools() {
    const count = tool({
      description: "Count things.",
      inputSchema: schema({ of: { type: "string" } }),
      execute: async ({ of }) => of.length,
    });
    const { steps, text } = await generateText({ ...asked, tools: { count }, stopWhen: stepCountIs(2) });
    return JSON.stringify([steps.flatMap((step) => step.toolCalls.map((call) => call.input)), text]);
  },
  async json() {
    return JSON.stringify((await generateObject({ ...asked, schema: schema({ number: { type: "integer" } }) })).object);
  },
};

process.stdout.write(JSON.stringify(await capabilities[capability]()));
