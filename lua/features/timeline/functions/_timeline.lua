-- The timeline of a job: every change of its state, with time and worker (docs/learn/failures.md). Off unless the queue
-- turns it on.
-- P:meta, `timeline`: `<sample, in millionths>|<entries>`. Field `timeline` of a job: `<ms, hex>|<first worker>`, then
-- lines, oldest first, each after a newline: the letter of the state, the time since the head's in ms, hex, and who
-- changed the state: nothing = no worker, `=` = the first worker, else `|<worker>`. So the field of a usual job has less
-- than 64 bytes: a longer one would give its record an encoding that costs twice as much to change.
-- A job is sampled by its id, so that all its transitions are recorded or none.

local ALL, ENTRIES_MAX, ID_MAX, PRIME = 1000000, 1000, 256, 2147483647
local TIME_DIGITS = 12
local LETTERS = {
  waiting = 'w', prioritized = 'p', delayed = 'd', active = 'a', completed = 'c', failed = 'f', suspended = 's',
  ['waiting-children'] = 'k', ['group-waiting'] = 'g',
}

-- Return {sample, entries}, or false if the timeline is off. q.timeline: the text, if the call has read it.
local function settings(q)
  local known = rawget(q, 'timeline_settings')
  if known ~= nil then return known end
  local text = rawget(q, 'timeline')
  if text == nil then text = G.pcall('HGET', q.meta, 'timeline') end
  local sample, entries = string.match(type(text) == 'string' and text or '', '^(%d+)|(%d+)$')
  known = sample and G.count_of(sample) > 0
    and { sample = G.count_of(sample), entries = math.min(math.max(1, G.count_of(entries)), ENTRIES_MAX) } or false
  rawset(q, 'timeline_settings', known)
  return known
end

local function is_sampled(sample, id)
  if sample >= ALL then return true end
  local hash = 1
  for i = 1, math.min(#id, ID_MAX) do hash = (hash * 48271 + string.byte(id, i)) % PRIME end
  for _ = 1, 3 do hash = (hash * 48271 + 11) % PRIME end -- ids that differ in the last digit only
  return hash % ALL < sample
end

-- lines: each begins with a newline. Remove the oldest. A line has at least 3 bytes.
local function bounded(lines, entries)
  if #lines < 3 * entries then return lines end
  local starts = { 1 }
  for _ = 1, ENTRIES_MAX do
    local at = string.find(lines, '\n', starts[#starts] + 1, true)
    if not at then break end
    starts[#starts + 1] = at
  end
  return string.sub(lines, starts[math.max(1, #starts - entries + 1)])
end

local NONE = {}

-- Return the parts of the field: the time of the head, its worker ('' = none yet), the lines. A malformed field is
-- replaced.
local function parts_of(text, now)
  local base, first, lines = string.match(text or '', '^(%x+)|([^\n]*)(\n.*)$')
  if not base or #base > TIME_DIGITS then return now, '', '' end
  return tonumber(base, 16), first, lines
end

local function appended(text, entries, state, now, worker)
  local base, first, lines = parts_of(text, now)
  local by = ''
  if worker and worker ~= '' then
    if first == '' then first = worker end
    by = worker == first and '=' or '|' .. worker
  end
  lines = lines .. '\n' .. (LETTERS[state] or '?') .. string.format('%x', math.max(0, now - base)) .. by
  return string.format('%x', base) .. '|' .. first .. bounded(lines, entries)
end

-- Return the fields to write with the state, flat; empty if the timeline is off. before: the field of the record, false
-- or nil = none. This replaces the function of core/namespaces.lua, which the wire library keeps.
G.timeline_fields = function(q, id, before, state, now, worker)
  if rawget(q, 'timeline') == false then return NONE end
  local known = settings(q)
  if not known or not is_sampled(known.sample, id) then return NONE end
  return { 'timeline', appended(before, known.entries, state, tonumber(now) or G.now(q), worker) }
end

-- Record that the job has this state now, where the record is not read and written anyway. Also replaces an empty
-- function.
G.note_state = function(q, id, state, now, worker)
  if rawget(q, 'timeline') == false or not settings(q) then return end
  local before, present = unpack(redis.call('HMGET', q.J .. id, 'timeline', 'state'))
  if not present then return end
  local fields = G.timeline_fields(q, id, before, state, now, worker)
  if #fields > 0 then redis.call('HSET', q.J .. id, unpack(fields)) end
end
