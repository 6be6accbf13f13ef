-- Read the scheduled set by state. Each priority is a range of scores (docs/reference/data-model.md, "Scores in
-- P:scheduled"). Jobs without a priority are delayed. A job with a priority is ready when it is due and stays in the
-- set until a worker fetches it; before that it is delayed.

local BANDS_MAX = 256 -- priorities read per call

-- Return the lowest priority from `from` on that has a member; nil if there is none.
G.next_band = function(q, from) return (G.scheduled_from(q.scheduled, G.band_start(from))) end

-- Count delayed jobs with a priority of `band` or later, within BANDS_MAX priorities. Return the count and the
-- priority to continue with; 0 = done.
G.count_delayed = function(q, now, band)
  local not_due = 0
  band = G.next_band(q, band)
  for _ = 1, BANDS_MAX do
    if not band then return not_due, 0 end
    local next_one = G.int((band + 1) * G.BAND)
    not_due = not_due + redis.call('ZCOUNT', q.scheduled, '(' .. G.int(band * G.BAND + now), '(' .. next_one)
    band = G.next_band(q, band + 1)
  end
  return not_due, band or 0
end

-- Return delayed, prioritized, band (as in count_delayed).
G.count_scheduled = function(q, now)
  local prioritized = redis.call('ZCOUNT', q.scheduled, G.int(G.BAND), '+inf')
  local delayed = redis.call('ZCARD', q.scheduled) - prioritized
  if prioritized == 0 then return delayed, 0, 0 end
  local not_due, band = G.count_delayed(q, now, 1)
  return delayed + not_due, prioritized - not_due, band
end

-- Return the score range of a state in a priority: the lowest score as a command argument, and the first score
-- beyond.
G.band_bounds = function(band, now, ready)
  local low = band * G.BAND
  if ready then return G.int(low), low + now + 1 end
  return band == 0 and '-inf' or G.int(low + now + 1), low + G.BAND
end

-- Return the cursor after the last of some members and scores.
G.slice_end = function(found) return found[#found] .. '@' .. found[#found - 1] end

local function page(command, key, count, ...)
  local found = redis.call(command, key, ...)
  return found, #found == 2 * count and G.slice_end(found) or ''
end

-- Return members of a sorted set with their scores, after the last one of the cursor `<score>@<member>`, or from the rank
-- of a cursor `r:<rank>`. If it has left the set, all members with its score are returned again. The second value is the
-- cursor of the next slice, '' at the end.
-- newest: from the highest score on; the bounds are then `high`, `low`.
G.set_slice = function(key, cursor, count, low, high, newest)
  local rev = newest and 'REV' or ''
  local by_rank, by_score = 'Z' .. rev .. 'RANGE', 'Z' .. rev .. 'RANGEBYSCORE'
  local from = tonumber(string.match(cursor, '^r:(%d+)$'))
  if from then return page(by_rank, key, count, G.int(from), G.int(from + count - 1), 'WITHSCORES') end
  local score, last = string.match(cursor, '^(.-)@(.*)$')
  if not score or redis.call('ZSCORE', key, last) ~= score then
    return page(by_score, key, count, score or low, high, 'WITHSCORES', 'LIMIT', 0, count)
  end
  local rank = redis.call('Z' .. rev .. 'RANK', key, last)
  return page(by_rank, key, count, G.int(rank + 1), G.int(rank + count), 'WITHSCORES')
end
