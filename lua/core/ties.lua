-- Members of a sorted set that have the same time are in the order of their ids, a shorter id before a longer one: so ids
-- that a queue issues are in the order of the adds. (The server sorts them as text: 1, 10, 2.) Bound: TIES_MAX members of
-- one time are sorted; if there are more, those that are first as text.

local SCORED = G.rows.scored
local TIES_MAX = 1000

-- Return the member at a rank and its score; nil if there is none.
G.member_at = function(key, rank)
  local found = redis.call('ZRANGE', key, rank, rank, 'WITHSCORES')
  return found[SCORED.member], found[SCORED.score]
end

-- Return the priority, the time and the id of the first job from a score on in the scheduled set; nil if there is none.
G.scheduled_from = function(key, low)
  local found = redis.call('ZRANGEBYSCORE', key, low, G.BELOW_SCHEDULED_END, 'WITHSCORES', 'LIMIT', 0, 1)
  local band, at = G.band_of(found[SCORED.score])
  return band, at, found[SCORED.member]
end

-- Add a job to a set of delayed ones. The first of them wakes an idle worker, so that it resets its timer.
G.add_delayed = function(q, key, id, due)
  redis.call('ZADD', key, G.score(G.clamped_time(due)), id)
  if G.member_at(key, 0) == id then G.wake(q, 1) end
end

G.is_before = function(a, b) return #a < #b or #a == #b and a < b end

-- Sort `found`, members and scores, flat, of which those with one score are adjacent.
G.sort_ties = function(found)
  local size, from = #found, 1
  for i = 2, size, 2 do
    local last = i == size or found[i + 2] ~= found[i]
    if last and from < i - 1 then
      local ids = {}
      for at = from, i, 2 do ids[#ids + 1] = found[at] end
      table.sort(ids, G.is_before)
      for at = 1, #ids do found[from + 2 * (at - 1)] = ids[at] end
    end
    if last then from = i + 1 end
  end
end

-- Return what `read(most)` finds: `limit` members and scores, flat, and those that have the score of the last one. The
-- second value is true if there are no more.
G.whole_ties = function(limit, read)
  local most = limit + TIES_MAX - 1
  local found = read(most)
  local total, size = #found, math.min(#found, 2 * limit)
  for i = size + 2, total, 2 do
    if found[i] ~= found[size] then break end
    size = i
  end
  for i = total, size + 1, -1 do found[i] = nil end
  return found, size == total and total < 2 * most
end

-- Return the members of one score in their order. is_first: there is none before them, so they get scores of their own, up
-- to a second before it, and need not be sorted again.
local function tie_of(key, score, is_first)
  local ids, scored = redis.call('ZRANGEBYSCORE', key, score, score, 'LIMIT', 0, TIES_MAX), {}
  table.sort(ids, G.is_before)
  local from = tonumber(score) - #ids
  local keeps = not is_first or from % G.BAND + #ids >= G.BAND or from < 0
  for i = 1, #ids do
    scored[2 * i - 1], scored[2 * i] = keeps and score or G.int(from + i), ids[i]
  end
  if not keeps then redis.call('ZADD', key, unpack(scored)) end
  return scored
end

-- Return at most `limit` members in their order, given one more of `key` than these. latest: of a score above it, ties are
-- not sorted, since it is not due.
G.in_order = function(key, found, limit, latest)
  local size, tied = #found, false
  for i = 4, size, 2 do tied = tied or found[i] == found[i - 2] end
  if size > 2 * limit then
    local last = found[size]
    if tied and found[size - 2] == last and tonumber(last) <= latest then
      for i = size, 2, -2 do
        if found[i] ~= last then break end
        found[i], found[i - 1] = nil, nil
      end
      local tie = tie_of(key, last, #found == 0)
      for i = 1, #tie, 2 do found[#found + 1], found[#found + 2] = tie[i + 1], tie[i] end
    end
  end
  if tied then G.sort_ties(found) end
  for i = #found, 2 * limit + 1, -1 do found[i] = nil end
  return found
end

-- Return the first `limit` members of a set of times that are due, and their scores, flat.
G.due_members = function(key, now, limit)
  local found = redis.call('ZRANGEBYSCORE', key, '-inf', G.int(now), 'WITHSCORES', 'LIMIT', 0, limit + 1)
  return G.in_order(key, found, limit, now)
end
