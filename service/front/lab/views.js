// The views in the order of the navigation: another one is one more row.

import * as play from "./views/play.js";

export const VIEWS = [play];
