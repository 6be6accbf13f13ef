-- promote_jobs: make delayed jobs ready, by due time within each set and priority, one bounded batch per call.
-- KEYS 1 meta   ARGV 1 packed {batch, want, cursor, name}   -> packed {promoted, cursor}
-- want: how many more are requested, 0 = all   name: only jobs with this name, '' = any
-- cursor: '' at first, then the value of the previous reply; '' in the reply = the end. It has the number of the set,
-- how many of the members present at first are left, and the score and id of the last member that stayed delayed.
-- A job moves to the place that it would have without a delay: limits, ordering and fair shares apply when it is
-- fetched. Retries of broadcast messages (`id||subscription`, which no record has as its id) stay. Jobs that become delayed
-- meanwhile may be promoted or not.
-- Bound: `batch` jobs and 256 priorities per call, and the rest of the last jobs with one time (core/ties.lua).

local R = G.rescheduling
local SETS = { 'scheduled', 'delayed_own', 'fair_delayed' }
local BANDS_A_CALL = 256
local AFTER, SKIPPED = true, false

-- Promote one member; return whether it has left its place.
local function promote(q, p, id)
  local ok, h = G.attempt(G.job_of, q, id)
  if not ok or h.state ~= 'delayed' or (p.name ~= '' and h.name ~= p.name) then return SKIPPED end
  if R.promote(q, id, h, p.now) ~= 'ok' then return SKIPPED end
  G.emit(q.events, 'promoted', id)
  p.promoted = p.promoted + 1
  return AFTER
end

-- Promote the members of a range, `below` (a number or nil) is its exclusive end. Return whether the end was reached.
local function range(q, p, key, low, below)
  local room = math.min(p.batch - p.seen, p.left)
  if room <= 0 then return false end
  local cursor = p.score and p.score .. '@' .. p.last or ''
  local found, ended = G.whole_ties(room, function(most)
    return G.set_slice(key, cursor, most, low, below and '(' .. G.int(below) or '+inf')
  end)
  local ordered, stay = { unpack(found) }, {}
  G.sort_ties(ordered)
  for i = 1, #ordered, 2 do
    ended = ended or below and tonumber(ordered[i + 1]) >= below
    if below and tonumber(ordered[i + 1]) >= below or p.want > 0 and p.promoted == p.want then break end
    p.seen, p.left = p.seen + 1, p.left - 1
    stay[ordered[i]] = promote(q, p, ordered[i]) == SKIPPED
  end
  for i = 1, #found, 2 do
    if stay[found[i]] then p.last, p.score = found[i], found[i + 1] end
  end
  return ended
end

-- The delayed jobs of `scheduled` are the members of each priority that are not due, and those without a priority.
local function scheduled(q, p)
  local band = p.score and G.band_of(p.score) or G.next_band(q, 0)
  if p.last == '' then p.score = nil end -- the start of a priority
  for _ = 1, BANDS_A_CALL do
    if not band then return true end
    local low, below = G.band_bounds(band, p.now, false)
    if not range(q, p, q.scheduled, low, below) then break end
    p.score, p.last = nil, nil
    band = G.next_band(q, band + 1)
  end
  if not band then return true end
  if not p.score then p.score, p.last = G.int(band * G.BAND), '' end
  return false
end

local function is_over(p) return p.left <= 0 or (p.want > 0 and p.promoted == p.want) end

G.export('promote_jobs', { 'allow-oom' }, G.for_operators(function(q, r)
  local number, left, score, last = string.match(r.cursor, '^(%d)|(%d+)|(.-)@(.*)$')
  number = tonumber(number) or 1
  local p = { batch = r.batch, want = r.want, name = r.name, now = G.now(q), seen = 0, promoted = 0 }
  p.score, p.last = G.given(score), last
  for at = number, #SETS do
    local key = q[SETS[at]]
    p.left = at == number and tonumber(left) or redis.call('ZCARD', key)
    local ended = at == 1 and scheduled(q, p) or at > 1 and range(q, p, key, '-inf')
    if p.want > 0 and p.promoted == p.want then break end
    if not ended and not is_over(p) then
      local cursor = at .. '|' .. G.int(p.left) .. '|' .. (p.score or '') .. '@' .. (p.last or '')
      return { promoted = p.promoted, cursor = cursor }
    end
    p.score, p.last = nil, nil
  end
  return { promoted = p.promoted, cursor = '' }
end))
