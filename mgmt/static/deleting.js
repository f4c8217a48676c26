// What every "delete" does: asks, does it, says so.

import { confirmed } from "./forms.js";
import { failed, said } from "./notices.js";

/** Answers whether it was done. `act` asks the node. */
export async function ask({ title, text, label, done, act }) {
  if (!(await confirmed({ title, text, label }))) return false;
  try {
    await act();
  } catch (problem) {
    failed(problem);
    return false;
  }
  said(done);
  return true;
}
