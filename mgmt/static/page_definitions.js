// Definitions: all that is declared, as a file, out and in.

import * as api from "./api.js";
import { el, section } from "./dom.js";
import { confirmed, Form } from "./forms.js";
import { learnVhosts, session } from "./session.js";

const ALL = { value: "", label: "all virtual hosts" };

function whichVhost(action) {
  return {
    name: "vhost",
    label: action,
    type: "select",
    options: [ALL, ...session.vhosts.map((name) => ({ value: name, label: name }))],
  };
}

function definitionsPath(vhost) {
  return vhost ? api.path("definitions", vhost) : "definitions";
}

export function definitionsPage() {
  const download = new Form({
    label: "Download definitions",
    keep: true,
    fields: [
      whichVhost("Download those of"),
      {
        name: "file",
        label: "File name",
        value: `warren_${new Date().toISOString().slice(0, 10)}.json`,
        required: true,
      },
    ],
    submit: async ({ vhost, file }) => {
      const link = el(
        "a",
        {
          href: api.address(definitionsPath(vhost), { download: file }),
          download: file,
          hidden: true,
        },
        "Download",
      );
      document.body.append(link);
      link.click();
      link.remove();
    },
  });
  const upload = new Form({
    label: "Upload definitions",
    fields: [whichVhost("Into"), { name: "file", label: "File", type: "file", required: true }],
    submit: async ({ vhost, file }) => {
      const text = `What ${file.name} defines is declared; users, policies and permissions that are there already are overwritten. Nothing is deleted.`;
      if (
        !(await confirmed({
          title: "Import these definitions?",
          text,
          label: "Import",
          tone: "primary",
        }))
      )
        return null;
      let definitions;
      try {
        definitions = JSON.parse(await file.text());
      } catch {
        throw new Error(`${file.name} is not JSON.`);
      }
      await api.post(definitionsPath(vhost), definitions);
      await learnVhosts();
      return `The definitions of ${file.name} are imported.`;
    },
  });
  const element = el(
    "div",
    { class: "page" },
    section(
      "Download",
      el(
        "p",
        {},
        "Users, virtual hosts, permissions, policies, parameters, queues, exchanges and bindings. Messages are not in it; password hashes are.",
      ),
      download.element,
    ),
    section("Upload", upload.element),
  );
  return { title: "Definitions", call: "definitions", element };
}
