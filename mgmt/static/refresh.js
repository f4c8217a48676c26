// Calls the page on show every few seconds; not while nobody can see it.

import { prefer, preference } from "./prefs.js";

export const INTERVALS_S = [5, 2, 10, 30, 60, 0];

export class Refresher {
  #work = async () => {};
  #timer = null;
  #running = false;
  #intervalS = preference("interval", INTERVALS_S[0]);

  constructor() {
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) clearTimeout(this.#timer);
      else this.now();
    });
  }

  get intervalS() {
    return this.#intervalS;
  }

  set intervalS(seconds) {
    this.#intervalS = seconds;
    prefer("interval", seconds);
    this.#schedule();
  }

  /** What is called from now on; it never throws. */
  set work(work) {
    this.#work = work;
    this.#running = false;
  }

  async now() {
    if (this.#running) return;
    this.#running = true;
    const work = this.#work;
    await work();
    // Meanwhile another page may have come.
    if (work === this.#work) {
      this.#running = false;
      this.#schedule();
    }
  }

  stop() {
    clearTimeout(this.#timer);
    this.work = async () => {};
  }

  #schedule() {
    clearTimeout(this.#timer);
    if (this.#intervalS && !document.hidden) {
      this.#timer = setTimeout(() => this.now(), this.#intervalS * 1000);
    }
  }
}
